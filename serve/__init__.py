"""Serving: the server, its clients and its tools."""

import os

# gRPC's C++ core writes lines of its own to stderr, in a form that no log can hold; it looks when grpc is imported.
# What goes wrong in a call comes as an error anyway.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
