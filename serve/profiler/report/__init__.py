"""The profile on a terminal and as a page."""
