"""Further networks over the features of a row, each from its paper, and their factories."""
