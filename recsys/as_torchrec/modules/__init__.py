"""Layers that only TorchRec code uses."""
