"""Sharding: sharding types, transports and lookup kernels, combined by composition."""
