"""``python -m recsys.planner``: the command recsys-plan."""

from __future__ import annotations

import sys

from recsys.planner.cli import main

# Processes that measure links import this module anew.
if __name__ == "__main__":
    sys.exit(main())
