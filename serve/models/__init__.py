"""Models of a server: loading, routing, updates, unloading."""
