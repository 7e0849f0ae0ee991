"""From a click to a served row: how long it takes, what it is worth, and what it costs training and serving."""
