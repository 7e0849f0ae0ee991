"""What TorchRec calls inference: models quantized in place, and the modules that answer requests."""
