"""The inputs of a model: its signature, the schema of its table, rows as examples."""
