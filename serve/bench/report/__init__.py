"""What recsys-bench prints and draws."""
