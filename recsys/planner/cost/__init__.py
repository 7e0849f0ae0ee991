"""Cost of a plan: topology, constraints, estimates."""
