"""What surrounds predictions in a server: its log, HTTP, locks, floods of calls, many processors."""
