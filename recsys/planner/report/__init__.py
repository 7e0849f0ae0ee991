"""What recsys-plan prints and draws."""
