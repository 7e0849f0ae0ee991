"""What need not be computed behind the IDs of a bag, because only padding lies there."""
