"""Rewrites the imports of files, so that they name this library in place of TorchRec."""
