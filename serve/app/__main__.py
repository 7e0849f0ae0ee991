"""The command recsys-serve; also ``python -m serve.app``."""

import sys

from recsys.base.cli import command

main = command("recsys-serve", "serve.app.cli")

if __name__ == "__main__":
    sys.exit(main())
