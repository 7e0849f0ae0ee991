"""What benchmarks run in a process of its own."""
