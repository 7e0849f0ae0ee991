"""Sharding: sharding type, transport and lookup kernel, put together by composition."""
