"""The load of recsys-bench: requests, senders, measurements."""
