"""Models that only TorchRec code uses."""
