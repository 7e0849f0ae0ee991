"""How inputs and outputs travel between shards."""
