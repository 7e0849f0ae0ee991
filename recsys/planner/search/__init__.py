"""Search over plans."""
