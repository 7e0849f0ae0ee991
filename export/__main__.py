"""The command recsys-export; also ``python -m export``."""

import sys

from recsys.base.cli import command

main = command("recsys-export", "export.cli", options="export.options")

if __name__ == "__main__":
    sys.exit(main())
