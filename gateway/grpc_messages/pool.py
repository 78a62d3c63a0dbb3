"""A descriptor pool of our own, in the place of protobuf's default one.

Clients of the protocol bring messages of the same names; in one pool, whichever is imported second would fail. Tests,
and whoever uses gateway and client in one process, have both.
"""

from google.protobuf.descriptor_pool import DescriptorPool

_POOL = DescriptorPool()


def Default() -> DescriptorPool:  # noqa: N802  # stands in for the function of this name in generated code
    """The pool that our messages are in."""
    return _POOL
