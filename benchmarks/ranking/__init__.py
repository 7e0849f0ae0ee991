"""Ranking requests: one context, many rows. With the context computed once, repeated for each row, and by hand."""
