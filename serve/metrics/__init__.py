"""Counters, and the HTTP server of the metrics."""
