"""Reports of recsys-plan: text and HTML."""
