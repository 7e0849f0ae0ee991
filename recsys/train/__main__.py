"""The commands recsys-train and recsys-eval; torchrun starts it on each rank as ``python -m recsys.train``."""

from __future__ import annotations

import sys

from recsys.cli import command

main = command("recsys-train", "recsys.train.cli", options="recsys.train.options")
#: The command recsys-eval.
evaluate = command("recsys-eval", "recsys.train.eval_cli", options="recsys.train.eval_options")

if __name__ == "__main__":
    sys.exit(main())
