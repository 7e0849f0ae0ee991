"""The commands recsys-train and recsys-eval: options, defaults, sources of data."""
