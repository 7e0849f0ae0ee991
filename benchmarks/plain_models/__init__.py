"""Public models of plain PyTorch, exported and served as their packages publish them."""
