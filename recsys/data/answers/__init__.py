"""Training tables from the log of answers and labels: ``recsys-data join``."""
