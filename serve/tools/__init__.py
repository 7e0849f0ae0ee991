"""Command-line tools: predict, admin, probe."""
