"""The options of recsys-train."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from recsys.options.kinds import (
    ADDRESS,
    COUNT,
    COUNTS,
    DURATION,
    NAMES,
    NUMBERS,
    PATH,
    SEED,
    SWITCH,
    TEXT,
    Kind,
    number,
    one_of,
    text_like,
    whole,
)
from recsys.options.table import Command, Group, Option, json_option, threads_option
from recsys.train.best import BEST_METRICS
from recsys.train.commands.defaults import DEFAULTS, SYNTHETIC_ROWS
from recsys.train.config import (
    LOSSES,
    MATMUL_PRECISIONS,
    MODELS,
    NEGATIVES,
    OBJECTIVES,
    PRUNERS,
    PUBLISH_EVERY_S,
    ModelConfig,
    RunConfig,
    TrainConfig,
)
from recsys.train.schedules import MIXED_PRECISIONS, SCHEDULES

_EXAMPLES = """\
examples:
  recsys-train --data clicks.csv --out model.pt
  recsys-train --data clicks/ --schema schema.toml --model dcn --checkpoint-dir run --resume
  recsys-train --data histories.parquet --schema schema.toml --model sasrec --objective next-item \\
      --history seen --target-feature item --out model.pt
  recsys-train --data synthetic --out model.pt
  recsys-train --data movielens --path data/ml-100k --out model.pt
  recsys-train --data criteo --path train.txt --hash-rows 1000000 --limit-rows 5000000 --out model.pt
  recsys-train --data hour-07.csv --init-from model.pt --freeze-dense --out model-07.pt
  recsys-train --data clicks.csv --init-from model.pt --artifact model.artifact --publish deltas/ --publish-every 30s \\
      --checkpoint-dir run
  torchrun --nproc-per-node 2 -m recsys.train --data movielens --path data/ml-100k --plan plan.json \\
      --checkpoint-dir run --checkpoint-every 1000

The last 10 % of the rows (by the time column, if there is one) are held out. The results go to stdout, a
progress bar to stderr where that is a terminal. Exit status: 0 the model is saved, 1 the training failed, 2 wrong
options or data.
"""


# Earlier releases had this name for tables.
_TABLE = "parquet"


def given(args: argparse.Namespace, config: type[Any]) -> dict[str, Any]:
    """Return the options that were given and are fields of the config."""
    return {field.name: getattr(args, field.name) for field in fields(config) if field.name in args.given}


def _parsed_source(text: str) -> str | Path:
    """Return the name of a source, or the path of a table."""
    if not text:
        raise ValueError
    return text if text in DEFAULTS or text == _TABLE else Path(text)


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


_SOURCE = Kind(expected="a path or the name of a source", parse=_parsed_source, example="synthetic")
_COLUMN = text_like("click", "COLUMN")
_RATE = number(above=0)
_DATA = (
    Option(
        "--data",
        _SOURCE,
        "a CSV, Parquet, ORC, Feather or JSON-lines file (.gz too), a folder of them or a pattern; or synthetic, "
        "criteo, movielens",
        required=True,
        metavar="PATH",
    ),
    Option("--path", PATH, "the file (criteo) or folder (movielens) to read", metavar="PATH"),
    Option("--schema", PATH, "says which column is what: see recsys-data inspect"),
    Option(
        "--label",
        _COLUMN,
        "a label of a table without a schema (or COLUMN>=NUMBER, COLUMN=TEXT,TEXT; COLUMN:mse or COLUMN:huber for "
        "a number); repeatable",
        repeated=True,
        dest="labels",
        default=[],
    ),
    Option(
        "--ignore",
        _COLUMN,
        "a column to leave out, without a schema; repeatable",
        repeated=True,
        default=[],
    ),
    Option(
        "--limit-rows",
        COUNT,
        f"use the first N rows only (synthetic: the length of the stream, default {SYNTHETIC_ROWS})",
    ),
    Option(
        "--hash-rows",
        COUNT,
        "rows of each table with many values, without a schema (default 100000)",
        metavar="R",
    ),
    Option("--prefetch", COUNT, "batches to read ahead (default 4)"),
)
_RESULT = (
    Option("--out", PATH, "write the whole model to one file; this, --checkpoint-dir or both are required"),
    Option("--checkpoint-dir", PATH, "write checkpoints, each rank its part", metavar="DIR"),
    Option(
        "--checkpoint-every",
        whole(0),
        "steps between two checkpoints in an epoch; 0 for one at its end only",
        default=0,
    ),
    Option("--resume", SWITCH, "go on from the newest one in --checkpoint-dir"),
    Option(
        "--init-from",
        PATH,
        "start from the weights of a model file or a run's directory, with its schema and its sizes",
        metavar="PATH",
    ),
    Option(
        "--example-rows",
        whole(0),
        "held-out rows to keep in the model, which recsys-export verifies with and servers show as examples "
        f"(default {RunConfig.example_rows}; 0 keeps none)",
    ),
    Option(
        "--sketch-rows",
        whole(0),
        "held-out rows whose distributions are kept in the model, so that servers see how requests differ from them "
        f"(default {RunConfig.sketch_rows}; 0 keeps none)",
    ),
    json_option(),
    Option(
        "--log",
        text_like("mlflow:sqlite:///mlflow.db", "KIND:WHERE"),
        "log settings and metrics: tensorboard:DIR, mlflow[:URI], wandb[:DIR] (offline); repeatable",
        repeated=True,
        default=[],
    ),
    Option("--tensorboard", PATH, "--log tensorboard:DIR", metavar="DIR"),
    Option("--log-every", COUNT, "steps between lines on the training (default 500)"),
)
_PUBLISHING = (
    Option(
        "--publish",
        ADDRESS,
        "publish deltas of what changes while it trains, for servers that follow this folder or address",
        metavar="DEST",
    ),
    Option(
        "--publish-every",
        DURATION,
        f"time between two deltas (default {PUBLISH_EVERY_S:g}s)",
    ),
    Option("--artifact", PATH, "with --publish: the artifact of this model that servers have loaded"),
)
_RANKS = (
    Option("--device", one_of(("cpu", "cuda")), "of every rank", default="cpu"),
    Option("--plan", PATH, "a sharding plan; the planner makes one otherwise"),
    Option(
        "--mapping-buckets",
        COUNT,
        "parts of each zero-collision mapping, a multiple of the ranks, which hold some each, and a divisor of the "
        "table's rows; it stays the same for the life of a model (default: a copy of the whole mapping on every rank)",
        metavar="K",
    ),
)
_MODEL = (
    Option("--model", one_of(MODELS), "the model (default dlrm)"),
    Option(
        "--objective",
        one_of(OBJECTIVES),
        "sasrec, hstu: learn labels, or the item that follows each history, in a table without labels (default "
        f"{ModelConfig.objective})",
    ),
    Option("--embedding-dim", COUNT, f"of every table {_default('embedding_dim')}", metavar="D"),
    Option(
        "--dense-layers",
        COUNTS,
        f"dlrm: layers on dense features, before one of size D {_default('dense_layers')}",
    ),
    Option(
        "--over-layers",
        COUNTS,
        "layers before the logits; twotower: of each tower; none in sasrec, and in hstu for next-item "
        f"{_default('over_layers')}",
    ),
    Option("--cross-layers", COUNT, "dcn: cross layers (default 3)"),
    Option("--cross-rank", whole(0), "dcn: rank of their matrices; 0 is full (default: full)", metavar="R"),
    Option("--experts", COUNT, "mmoe: experts; ple: of each label, and shared ones (default 4)"),
    Option("--extraction-levels", COUNT, "ple: levels of experts (default 2)"),
    Option("--tower-layers", COUNTS, "mmoe, ple: layers of each label (default 32)"),
    Option("--mask-blocks", COUNT, "masknet: blocks (default 3)"),
    Option(
        "--fusion-heads",
        COUNT,
        "finalmlp: heads of the streams' products; a divisor of the last of --over-layers (default 2)",
    ),
    Option("--interaction-layers", COUNT, "wukong: layers over the vectors (default 2)"),
    Option(
        "--interaction-vectors",
        COUNT,
        "wukong: vectors that a layer's machine gives, and its compression (default 8)",
    ),
    Option(
        "--interaction-rank",
        COUNT,
        "wukong: mixtures of the vectors that they are multiplied with (default 8)",
        metavar="R",
    ),
    Option(
        "--item-features",
        NAMES,
        "twotower, finalmlp, sasrec, hstu: the items' sparse features (beside --target-feature); the others are the "
        "user's",
    ),
    Option(
        "--history",
        TEXT,
        "din, sasrec, hstu: the sparse feature of the user's items, the latest last",
        metavar="NAME",
    ),
    Option(
        "--target-feature",
        TEXT,
        "din, sasrec, hstu: the sparse feature of the item, of the same table; for next-item it need not be a column: "
        "then the last item of a history is the next one",
        metavar="NAME",
        dest="target",
        old=("--target",),
    ),
    Option("--max-history", COUNT, "din, sasrec, hstu: the last N IDs of a history count (default 50)"),
    Option(
        "--attention-layers",
        COUNTS,
        "din: layers before the score of an item of the history (default 32,16)",
    ),
    Option("--attention-softmax", SWITCH, "din: normalize the scores of a history"),
    Option(
        "--encoder-layers",
        COUNT,
        f"sasrec, hstu: layers over the history (default {ModelConfig.encoder_layers})",
    ),
    Option(
        "--heads",
        COUNT,
        f"sasrec, hstu: heads of their attention; a divisor of D (default {ModelConfig.heads})",
    ),
    Option(
        "--dropout",
        number(0, 0.99),
        "sasrec, hstu: the share of the encoder's numbers that training leaves out (default "
        f"{ModelConfig.dropout:g})",
        metavar="P",
    ),
    Option(
        "--learn-label-weights",
        SWITCH,
        "weigh the losses of several labels by their uncertainty, which is learned with the model",
    ),
    Option(
        "--admission-interval",
        COUNT,
        'batches between two admissions of raw IDs to tables with ids = "zero_collision" (default '
        f"{ModelConfig.admission_interval}); 1 where new IDs must be served within seconds",
    ),
)
_TRAINING = (
    Option("--epochs", COUNT, f"passes over the training rows {_default('epochs')}"),
    Option(
        "--best-metric",
        one_of(BEST_METRICS),
        "the held-out metric of the epoch that is kept, the mean over several labels (default "
        f"{TrainConfig.best_metric}); last keeps the last epoch",
    ),
    Option("--patience", COUNT, "stop after N epochs in a row that are not better (default: never)"),
    Option("--batch-size", COUNT, f"rows per rank and step {_default('batch_size')}", metavar="B"),
    Option(
        "--matmul-precision",
        one_of(tuple(MATMUL_PRECISIONS)),
        "of the numbers that matrix products multiply: bfloat16 is faster on processors with AMX or AVX-512 BF16 "
        f"and on GPUs, and no different elsewhere (default {TrainConfig.matmul_precision})",
    ),
    Option("--seed", SEED, "the same seed gives the same model", default=0),
    threads_option(),
    Option("--optimizer", one_of(("adam", "adagrad")), f"of the dense layers {_default('optimizer')}"),
    Option("--learning-rate", _RATE, f"of the dense layers {_default('learning_rate')}"),
    Option("--row-learning-rate", _RATE, f"of the tables, row-wise Adagrad {_default('row_learning_rate')}"),
    Option(
        "--loss",
        one_of(LOSSES),
        "what is minimized; bpr compares rows of label 1 with those of 0 in the batch (next-item: the next item with "
        "others), softmax is that of twotower and next-item over items, corrected by how often they occur (default "
        f"{TrainConfig.loss})",
    ),
    Option("--positive-weight", _RATE, "factor of the loss of rows of label 1 (default 1)", metavar="W"),
    Option("--focal-gamma", number(0), f"exponent of the focal loss (default {TrainConfig.focal_gamma:g})"),
    Option("--label-weights", NUMBERS, "factors of the labels' losses, in the schema's order (default 1)"),
    Option(
        "--negatives",
        one_of(NEGATIVES),
        "items that an item is learned against: those of the batch, items drawn evenly or by how often they occur, or "
        f"the batch's and evenly drawn ones (default {TrainConfig.negatives})",
    ),
    Option(
        "--num-negatives",
        COUNT,
        f"items drawn for a batch, on each rank (default {TrainConfig.num_negatives})",
        metavar="M",
    ),
    Option(
        "--gather-negatives",
        SWITCH,
        "learn against the items of all ranks (bpr of labels: their rows), as one rank with the whole batch would; "
        "else against those of the rank's own batch",
    ),
    Option("--freeze-dense", SWITCH, "train the tables alone, for deltas of rows"),
    Option("--row-weight-decay", number(0), f"of the tables' touched rows {_default('row_weight_decay')}"),
)
_SCHEDULES = (
    Option(
        "--schedule",
        one_of(SCHEDULES),
        f"how learning rates change after the warm-up (default {TrainConfig.schedule})",
    ),
    Option("--row-schedule", one_of(SCHEDULES), "the same for the tables (default: as --schedule)"),
    Option("--warmup-steps", whole(0), "steps in which learning rates rise to their values (default 0)"),
    Option("--row-warmup-steps", whole(0), "the same for the tables (default: as --warmup-steps)"),
    Option(
        "--decay-steps",
        COUNT,
        "cosine: the step with the lowest rate (default: the last one); step: steps between two falls (default: those "
        "of an epoch)",
    ),
    Option(
        "--decay-factor",
        number(0, 1),
        "cosine: the lowest rate as a share of the highest (default 0); step: the rate after a fall as a share of that "
        "before (default 0.1)",
    ),
    Option("--clip-norm", number(above=0), "the largest norm of the dense layers' gradients (default: any)"),
    Option(
        "--row-clip-value",
        number(above=0),
        "the largest number in the gradient of a looked-up vector (default: any)",
    ),
    Option(
        "--accumulate",
        COUNT,
        "batches whose mean gradient makes a step of the dense layers (default 1); tables learn from each batch",
    ),
    Option(
        "--mixed-precision",
        one_of(MIXED_PRECISIONS),
        f"of the dense layers' activations and gradients, on a GPU (default {TrainConfig.mixed_precision}); "
        "weights and held-out metrics are float32",
    ),
)
_SWEEP = (
    Option(
        "--sweep",
        PATH,
        "train a run for each combination of the lists in [sweep] of --config, or --sweep-runs of its ranges, into "
        "this folder; the same command goes on after an interrupt",
        metavar="DIR",
    ),
    Option("--sweep-runs", COUNT, "how many runs (default: all combinations of lists; 20 of ranges)"),
    Option(
        "--sweep-pruner",
        one_of(PRUNERS),
        "end a run early whose best epoch is worse than the median, or the best quarter, of earlier runs after as many "
        "epochs; the first five are not ended",
        default="none",
    ),
)
#: What may differ between the runs of a sweep.
SWEPT = tuple(
    option
    for option in (*_DATA, *_MODEL, *_TRAINING, *_SCHEDULES)
    if option.name == "--hash-rows"
    or (option not in _DATA and option.name not in ("--threads", "--best-metric"))
)
COMMAND = Command(
    program="recsys-train",
    usage="%(prog)s --data PATH (--out FILE | --checkpoint-dir DIR | both) [options]",
    about="Train a model on a table of examples and save a checkpoint that recsys-export takes.",
    epilog=_EXAMPLES,
    groups=(
        Group("data", _DATA, section="data"),
        Group("result", _RESULT, section="result"),
        Group("publishing", _PUBLISHING, section="publishing"),
        Group("ranks (torchrun starts them; without it there is one)", _RANKS, section="ranks"),
        Group("model", _MODEL, section="model"),
        Group("training", _TRAINING, section="training"),
        Group("schedules", _SCHEDULES, section="schedule"),
        Group("sweep", _SWEEP),
    ),
    old_config=("--model-config",),
    documents=("schema", "export", "sweep"),
)
parse = COMMAND.parse
