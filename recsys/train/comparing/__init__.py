"""Models side by side on the rows of a table: metrics, differences, slices, calibration; ``recsys-eval``."""
