"""Serving behind Ray Serve."""
