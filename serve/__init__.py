"""Serving: the server, its clients and its tools."""

import os

# gRPC's C++ core logs to stderr in a format of its own. It reads this variable when grpc is imported. Failed
# calls raise errors in any case.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
