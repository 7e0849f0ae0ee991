"""Models that benchmarks build, and the sets of tables that they plan."""
