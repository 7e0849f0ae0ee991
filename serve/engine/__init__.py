"""Engines, which answer requests: one interface, two implementations."""
