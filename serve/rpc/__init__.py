"""gRPC methods that Python answers under every engine."""
