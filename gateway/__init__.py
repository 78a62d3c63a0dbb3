"""The gateway: protocol in, record out, reply back. Thin; never imports an ML library, nor anything of workers."""

import os

# gRPC's core reads it when it is first imported. It would write plain lines to stderr, where our log is JSON; what goes
# wrong is told by its exceptions, too.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
