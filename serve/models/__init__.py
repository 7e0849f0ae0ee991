"""Models of a server: load, route, update, unload."""
