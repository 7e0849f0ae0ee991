"""Deltas of a loaded model: file and application."""
