"""Models behind Ray Serve."""
