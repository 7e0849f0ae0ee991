"""The engine in pure Python."""
