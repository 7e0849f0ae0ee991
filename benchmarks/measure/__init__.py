"""What benchmarks share: machine, memory, processes, speed and bars."""
