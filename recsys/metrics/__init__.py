"""Metrics: exact ones of whole sets, and TorchRec's of a lifetime and a window, which training updates as it goes."""
