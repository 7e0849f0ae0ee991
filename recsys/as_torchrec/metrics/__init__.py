"""Metrics of a lifetime and a window, by TorchRec's names."""
