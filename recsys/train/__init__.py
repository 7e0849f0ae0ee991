"""Training of a click model on one or more ranks."""
