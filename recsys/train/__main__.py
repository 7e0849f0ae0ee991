"""The commands recsys-train and recsys-eval; torchrun starts it on each rank as ``python -m recsys.train``."""

from __future__ import annotations

import sys

from recsys.base.cli import command

main = command("recsys-train", "recsys.train.commands.train", options="recsys.train.commands.train_options")
#: The command recsys-eval.
evaluate = command("recsys-eval", "recsys.train.commands.eval", options="recsys.train.commands.eval_options")

if __name__ == "__main__":
    sys.exit(main())
