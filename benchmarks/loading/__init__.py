"""Loading of artifacts, timed."""
