"""The options of recsys-train."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from recsys.base.cli import Parser, add_program_options, count, counts
from recsys.train.best import BEST_METRICS
from recsys.train.commands.defaults import DEFAULTS, SYNTHETIC_ROWS
from recsys.train.config import MATMUL_PRECISIONS, MODELS, RunConfig, TrainConfig

_EXAMPLES = """\
examples:
  recsys-train --data clicks.csv --out model.pt
  recsys-train --data clicks/ --schema schema.toml --model dcn --checkpoint-dir run --resume
  recsys-train --data synthetic --out model.pt
  recsys-train --data movielens --path data/ml-100k --out model.pt
  recsys-train --data criteo --path train.txt --hash-rows 1000000 --limit-rows 5000000 --out model.pt
  recsys-train --data hour-07.csv --init-from model.pt --freeze-dense --out model-07.pt
  torchrun --nproc-per-node 2 -m recsys.train --data movielens --path data/ml-100k --plan plan.json \\
      --checkpoint-dir run --checkpoint-every 1000

The last 10 % of the rows (by the time column, if there is one) are held out. The results go to stdout, a
progress bar to stderr where that is a terminal. Exit status: 0 the model is saved, 1 the training failed, 2 wrong
options or data.
"""


def given(args: argparse.Namespace, config: type[Any]) -> dict[str, Any]:
    """Return the options that were given and are fields of the config."""
    values = {field.name: getattr(args, field.name, None) for field in fields(config)}
    return {name: value for name, value in values.items() if value is not None}


def _count_or_none(text: str) -> int:
    return 0 if text == "0" else count(text)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed arguments."""
    made = Parser(
        prog="recsys-train",
        usage="%(prog)s --data PATH (--out FILE | --checkpoint-dir DIR | both) [options]",
        description="Train a model on a table of examples and save a checkpoint that recsys-export takes.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    data = made.add_argument_group("data")
    data.add_argument(
        "--data",
        required=True,
        metavar="PATH",
        help="a CSV, Parquet, ORC, Feather or JSON-lines file (.gz too), a folder of them or a pattern; or synthetic, "
        "criteo, movielens",
    )
    data.add_argument("--path", type=Path, help="the file (criteo) or folder (movielens) to read")
    data.add_argument(
        "--schema", type=Path, metavar="FILE", help="says which column is what: see recsys-data inspect"
    )
    data.add_argument(
        "--label",
        dest="labels",
        action="append",
        metavar="COLUMN",
        help="a label of a table without a schema (or COLUMN>=NUMBER, COLUMN=TEXT,TEXT); repeatable",
    )
    data.add_argument(
        "--ignore",
        action="append",
        metavar="COLUMN",
        help="a column to leave out, without a schema; repeatable",
    )
    data.add_argument(
        "--limit-rows",
        type=count,
        metavar="N",
        help=f"use the first N rows only (synthetic: the length of the stream, default {SYNTHETIC_ROWS})",
    )
    data.add_argument(
        "--hash-rows",
        type=count,
        metavar="R",
        help="rows of each table with many values, without a schema (default 100000)",
    )
    data.add_argument("--prefetch", type=count, metavar="N", help="batches to read ahead (default 4)")
    out = made.add_argument_group("result")
    out.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="write the whole model to one file; this, --checkpoint-dir or both are required",
    )
    out.add_argument(
        "--checkpoint-dir", type=Path, metavar="DIR", help="write checkpoints, each rank its part"
    )
    out.add_argument(
        "--checkpoint-every",
        type=count,
        default=0,
        metavar="N",
        help="steps between two checkpoints in an epoch (default: one at its end only)",
    )
    out.add_argument("--resume", action="store_true", help="go on from the newest one in --checkpoint-dir")
    out.add_argument(
        "--init-from",
        type=Path,
        metavar="PATH",
        help="start from the weights of a model file or a run's directory, with its schema and its sizes",
    )
    out.add_argument(
        "--example-rows",
        type=_count_or_none,
        metavar="N",
        help="held-out rows to keep in the model, which recsys-export verifies with and servers show as examples "
        f"(default {RunConfig.example_rows}; 0 keeps none)",
    )
    out.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    out.add_argument("--tensorboard", type=Path, metavar="DIR", help="write event files for TensorBoard")
    out.add_argument(
        "--log-every", type=count, metavar="N", help="steps between lines on the training (default 500)"
    )
    ranks = made.add_argument_group("ranks (torchrun starts them; without it there is one)")
    ranks.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of each rank (default cpu)")
    ranks.add_argument(
        "--plan", type=Path, metavar="FILE", help="a sharding plan; the planner makes one otherwise"
    )
    _add_model(made.add_argument_group("model"))
    _add_training(made.add_argument_group("training"))
    add_program_options(made)
    return made.parse_args(argv)


def _default(name: str) -> str:
    """Return the default of a field for tables, and what it is for other data."""

    def of(source: str) -> str:
        found = DEFAULTS[source]
        value = getattr(found.train if hasattr(found.train, name) else found.model, name)
        if isinstance(value, tuple):
            return ",".join(map(str, value))
        return f"{value:g}" if isinstance(value, float) else str(value)

    others = [f"{of(source)} for {source}" for source in DEFAULTS if of(source) != of("table")]
    return f"(default {'; '.join([of('table'), *others])})"


def _add_model(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--model", choices=MODELS, help="the model (default dlrm)")
    group.add_argument(
        "--embedding-dim", type=count, metavar="D", help=f"of every table {_default('embedding_dim')}"
    )
    group.add_argument(
        "--dense-layers",
        type=counts,
        metavar="N,N",
        help=f"dlrm: layers on dense features, before one of size D {_default('dense_layers')}",
    )
    group.add_argument(
        "--over-layers",
        type=counts,
        metavar="N,N",
        help=f"layers before the logits; twotower: of each tower {_default('over_layers')}",
    )
    group.add_argument("--cross-layers", type=count, metavar="N", help="dcn: cross layers (default 3)")
    group.add_argument(
        "--cross-rank", type=count, metavar="R", help="dcn: rank of their matrices (default: full)"
    )
    group.add_argument("--experts", type=count, metavar="N", help="mmoe: experts (default 4)")
    group.add_argument(
        "--tower-layers", type=counts, metavar="N,N", help="mmoe: layers of each label (default 32)"
    )
    group.add_argument(
        "--item-features",
        type=lambda text: tuple(text.split(",")),
        metavar="NAME,NAME",
        help="twotower: the items' sparse features; the others are the user's",
    )
    group.add_argument(
        "--history", metavar="NAME", help="din: the sparse feature of the user's items, the latest last"
    )
    group.add_argument(
        "--target", metavar="NAME", help="din: the sparse feature of the item, of the same table"
    )
    group.add_argument(
        "--max-history", type=count, metavar="N", help="din: the last N IDs of a history count (default 50)"
    )
    group.add_argument(
        "--attention-layers",
        type=counts,
        metavar="N,N",
        help="din: layers before the score of an item of the history (default 32,16)",
    )
    group.add_argument(
        "--attention-softmax",
        action="store_true",
        default=None,
        help="din: normalize the scores of a history",
    )
    group.add_argument(
        "--model-config", type=Path, metavar="FILE", help="TOML with the same names; options override it"
    )


def _add_training(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--epochs", type=count, metavar="N", help=f"passes over the training rows {_default('epochs')}"
    )
    group.add_argument(
        "--best-metric",
        choices=BEST_METRICS,
        help="the held-out metric of the epoch that is kept, the mean over several labels (default "
        f"{TrainConfig.best_metric}); last keeps the last epoch",
    )
    group.add_argument(
        "--patience",
        type=count,
        metavar="N",
        help="stop after N epochs in a row that are not better (default: never)",
    )
    group.add_argument(
        "--batch-size", type=count, metavar="B", help=f"rows per step, on each rank {_default('batch_size')}"
    )
    group.add_argument(
        "--matmul-precision",
        choices=tuple(MATMUL_PRECISIONS),
        help="of the numbers that matrix products multiply: bfloat16 is faster on processors with AMX or AVX-512 BF16 "
        f"and on GPUs, and no different elsewhere (default {TrainConfig.matmul_precision})",
    )
    group.add_argument("--seed", type=int, default=0, help="the same seed gives the same model (default 0)")
    group.add_argument("--threads", type=count, default=1, metavar="N", help="CPU threads (default 1)")
    group.add_argument(
        "--optimizer", choices=("adam", "adagrad"), help=f"of the dense layers {_default('optimizer')}"
    )
    group.add_argument(
        "--learning-rate", type=float, metavar="X", help=f"of the dense layers {_default('learning_rate')}"
    )
    group.add_argument(
        "--row-learning-rate",
        type=float,
        metavar="X",
        help=f"of the tables, row-wise Adagrad {_default('row_learning_rate')}",
    )
    group.add_argument(
        "--freeze-dense", action="store_true", default=None, help="train the tables alone, for deltas of rows"
    )
    group.add_argument(
        "--row-weight-decay",
        type=float,
        metavar="X",
        help=f"of the tables' touched rows {_default('row_weight_decay')}",
    )
