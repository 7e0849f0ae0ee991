"""Logs, traces and captures of requests."""
