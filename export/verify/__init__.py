"""Verification that an artifact predicts what the float model predicts."""
