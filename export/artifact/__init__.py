"""An artifact on disk."""
