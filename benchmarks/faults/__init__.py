"""Servers under attack."""
