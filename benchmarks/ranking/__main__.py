"""``python -m benchmarks.ranking``."""

import sys

from benchmarks.ranking.cli import main

if __name__ == "__main__":
    sys.exit(main())
