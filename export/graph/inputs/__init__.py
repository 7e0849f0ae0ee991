"""What a model takes: the arguments of its ``forward``, the features they hold, and what of them its outputs need."""
