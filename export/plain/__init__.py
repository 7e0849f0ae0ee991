"""Models of plain PyTorch, whose tables are ``nn.Embedding``s, as models that hold our collections."""
