"""What answers requests: one interface, two engines."""
