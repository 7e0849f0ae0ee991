"""What a trained model reads of a row and makes of it, and what its tables hold."""
