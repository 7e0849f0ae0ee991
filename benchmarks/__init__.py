"""Reproducible measurements. The packages import nothing from here."""
