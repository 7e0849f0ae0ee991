"""Training of a click model, on one rank or on many."""
