"""The command recsys-data."""

from __future__ import annotations

import sys

from recsys.base.cli import command

main = command("recsys-data", "recsys.data.cli", options="recsys.data.options")

if __name__ == "__main__":
    sys.exit(main())
