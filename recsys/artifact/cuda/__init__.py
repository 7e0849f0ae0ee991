"""CUDA graphs of a loaded model."""
