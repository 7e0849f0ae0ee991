"""Copies of module trees: with other modules in them, with plain weights, and with references to the copy."""
