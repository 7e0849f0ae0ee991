"""What recsys-bench sends, and what it measures."""
