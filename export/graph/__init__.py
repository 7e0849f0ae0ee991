"""From a model to a graph of plain tensors."""
