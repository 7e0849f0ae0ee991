"""``python -m benchmarks.plain_models``."""

import sys

from benchmarks.plain_models.cli import main

if __name__ == "__main__":
    sys.exit(main())
