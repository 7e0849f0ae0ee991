"""``python -m benchmarks.trainers``."""

import sys

from benchmarks.trainers.public.cli import main

if __name__ == "__main__":
    sys.exit(main())
