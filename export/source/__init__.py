"""The float model of an export: its code, its weights, its checkpoint."""
