"""The losses of recsys-train beyond the log loss, and the negatives that they are learned against."""
