"""The two sides of the training comparison."""
