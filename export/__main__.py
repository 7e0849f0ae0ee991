"""``python -m export`` is ``recsys-export``."""

import sys

from export.cli import main

sys.exit(main())
