"""``python -m serve.bench``."""

import sys

from serve.bench.cli import main

if __name__ == "__main__":
    sys.exit(main())
