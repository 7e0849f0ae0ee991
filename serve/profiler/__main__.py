"""``python -m serve.profiler``; imports torch only when it runs."""

import sys

from recsys.base.cli import command

main = command("recsys-profile", "serve.profiler.cli", options="serve.profiler.options")

if __name__ == "__main__":
    sys.exit(main())
