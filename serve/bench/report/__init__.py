"""Reports of recsys-bench: text and HTML."""
