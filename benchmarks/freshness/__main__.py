"""See ``benchmarks.freshness.cli``."""

import sys

from benchmarks.freshness.cli import main

sys.exit(main())
