"""recsys-bench: send load to a server and report its throughput, latencies, and whether they are valid.

docs/operate/bench.md explains its use and its numbers.
"""

from serve.bench.cli import main
from serve.bench.environment import scrape

__all__ = ["main", "scrape"]
