"""``python -m benchmarks.mlperf``."""

import sys

from benchmarks.mlperf.cli import main

if __name__ == "__main__":
    sys.exit(main())
