"""Trainers, compared and timed."""
