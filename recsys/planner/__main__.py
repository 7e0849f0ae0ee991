"""The command recsys-plan; also ``python -m recsys.planner``."""

from __future__ import annotations

import sys

from recsys.base.cli import command

main = command("recsys-plan", "recsys.planner.cli", options="recsys.planner.options")

# Processes that measure links import this module again.
if __name__ == "__main__":
    sys.exit(main())
