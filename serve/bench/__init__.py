"""recsys-bench: drive load at a server and say what it answers, how fast, and whether the numbers can be believed.

docs/bench.md says how to use it and how to read its numbers.
"""

from serve.bench.cli import main
from serve.bench.environment import scrape

__all__ = ["main", "scrape"]
