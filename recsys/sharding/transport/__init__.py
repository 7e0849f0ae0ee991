"""Transports of inputs and outputs between shards."""
