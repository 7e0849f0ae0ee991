"""Deltas: changed rows between two models."""
