"""The log of answers: what was asked and answered, for training."""
