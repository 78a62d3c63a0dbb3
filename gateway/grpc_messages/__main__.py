"""`python -m gateway.grpc_messages`: make the Python classes of the protocol's messages anew from their descriptions.

For developers: needs grpcio-tools, and runs in a source tree.
"""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).parent
_ROOT = _HERE.parent.parent
_NAMES = ("inference", "model_config")
_DEFAULT_POOL = "from google.protobuf import descriptor_pool as _descriptor_pool"
_OUR_POOL = "from gateway.grpc_messages import pool as _descriptor_pool"


def generate(into: Path) -> int:
    """Write the modules below `into`, in this package's place; the compiler's exit status."""
    from grpc_tools import protoc  # a tool of developers, absent where the gateway runs

    sources = [f"{_HERE.relative_to(_ROOT)}/{name}.proto" for name in _NAMES]
    status: int = protoc.main(["protoc", f"-I{_ROOT}", f"--python_out={into}", f"--pyi_out={into}", *sources])
    if status == 0:
        for name in _NAMES:
            module = into / _HERE.relative_to(_ROOT) / f"{name}_pb2.py"
            module.write_text(module.read_text().replace(_DEFAULT_POOL, _OUR_POOL, 1))
            types = module.with_suffix(".pyi")
            types.write_text(_typed(types.read_text()))
    return status


def _typed(stub: str) -> str:
    """The compiler leaves some types out, which strict mypy refuses."""
    stub = stub.replace(", _Mapping]", ", _Mapping[str, _Any]]").replace("**kwargs)", "**kwargs: _Any)")
    return f"from typing import Any as _Any\n{stub}"


if __name__ == "__main__":
    sys.exit(generate(_ROOT))
