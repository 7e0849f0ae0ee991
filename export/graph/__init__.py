"""Conversion of a model to a graph of plain tensors."""
