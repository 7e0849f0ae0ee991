"""Tracing of a user's code by torch.fx."""
