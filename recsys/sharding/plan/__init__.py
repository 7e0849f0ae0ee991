"""Plans: which rectangle of which table is on which rank."""
