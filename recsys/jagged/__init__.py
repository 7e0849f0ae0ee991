"""Jagged and keyed data types."""
