"""Ports: TLS, tokens, sockets, limits."""
