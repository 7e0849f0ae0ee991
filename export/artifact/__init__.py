"""Writing of artifacts."""
