"""gRPC methods implemented in Python, common to all engines."""
