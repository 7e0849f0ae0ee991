"""Data sets with a reader of their own."""
