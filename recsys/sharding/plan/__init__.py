"""Plans: the rank of each rectangle of each table."""
