"""Batches and datasets by TorchRec's names, for training loops that were written for it."""
