"""recsys-train: train a model, print its metrics on held-out data, save a checkpoint."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from recsys.checkpoint import Checkpoint, save_checkpoint
from recsys.checkpoint.lock import LOCK_NAME, check_free
from recsys.checkpoint.run import newest
from recsys.cli import Parser, add_program_options, announced, count, counts, near_misses
from recsys.data.examples import Dataset
from recsys.data.tables.reading.files import is_pattern
from recsys.errors import CheckpointWriteError
from recsys.files import check_room
from recsys.schema import Schema
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.plan.plan_file import read_plan
from recsys.train.best import BEST_METRICS, kept_text
from recsys.train.callbacks import Callback, CallbackList, ConsoleCallback, TensorBoardCallback, summary_text
from recsys.train.config import (
    MATMUL_PRECISIONS,
    MODELS,
    ModelConfig,
    RunConfig,
    TrainConfig,
    read_model_config,
)
from recsys.train.job import Trained, TrainJob, train_over_ranks
from recsys.train.loop import DivergedError
from recsys.train.progress import Epoch
from recsys.train.ranks import Ranks, find_ranks
from recsys.train.sources import DEFAULTS, SYNTHETIC_ROWS, DataConfig, open_dataset
from recsys.train.warm_start import WarmStart, read_start

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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    args = _parser().parse_args(argv)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(args.threads)
    try:
        return _run(args)
    except (CheckpointWriteError, DivergedError, OSError, MemoryError) as error:
        _complain(f"failed: {str(error) or type(error).__name__}")
        return 1
    except ValueError as error:
        _complain(str(error))
        return 2
    except RuntimeError as error:
        if not _is_lost_rank(error):
            raise
        _complain("failed: another rank has ended")
        return 1
    except KeyboardInterrupt:
        _complain("interrupted")
        return 1
    finally:
        torch.set_num_threads(threads_before)


def _run(args: argparse.Namespace) -> int:
    started = time.perf_counter()
    ranks = find_ranks(args.device)
    _check_results(args, ranks)
    start = None if args.init_from is None else read_start(args.init_from)
    given = [name for name in _given(args, ModelConfig) if start is not None]
    if given:
        raise ValueError(
            f"--{given[0].replace('_', '-')}: got it with --init-from, whose model has its own sizes"
        )
    source = replace(_source(args), inputs=_known_schema(args, start))
    defaults = DEFAULTS[source.name]
    reading = nullcontext() if ranks.rank else announced("recsys-train", f"reading {args.data}")
    with reading:
        dataset = open_dataset(source)
    job = TrainJob(
        dataset=dataset,
        model=replace(defaults.model, **read_model_config(args.model_config), **_given(args, ModelConfig)),
        train=replace(defaults.train, **_given(args, TrainConfig)),
        run=RunConfig(**_given(args, RunConfig)),
        plan=None if args.plan is None else _plan(args.plan, ranks),
        checkpoint_dir=args.checkpoint_dir,
        checkpoint_every=args.checkpoint_every,
        resume=args.resume,
        start=start,
    )
    if ranks.rank == 0:
        _check_room(args, job)
        for notice in dataset.notices:
            _complain(notice)
    with _callback(args, ranks, dataset, job.train.epochs) as callback:
        trained = train_over_ranks(job, ranks, callback, whole=args.out is not None)
    if ranks.rank == 0:
        _finish(args, job, trained, ranks, started)
    return 0


def _known_schema(args: argparse.Namespace, start: WarmStart | None) -> Schema | None:
    """Return the schema of the model that the training starts from or goes on with; None for a new one.

    What is inferred may differ between releases; a run goes on with the schema that it began with.
    """
    if start is not None:
        return start.schema
    is_inferred = not _given(args, DataConfig).keys() & {"schema", "labels", "hash_rows"}
    if not args.resume or not is_inferred or newest(args.checkpoint_dir) is None:
        return None
    return read_start(args.checkpoint_dir).schema


def _source(args: argparse.Namespace) -> DataConfig:
    """Return the data source: a name, or the path of a table."""
    name, given = args.data, _given(args, DataConfig)
    given["labels"] = tuple(args.labels or ())
    given["ignore"] = tuple(args.ignore or ())
    if name == "parquet":  # its name in earlier releases
        name = "table"
    if name in DEFAULTS:
        return DataConfig(name=name, **given)
    if args.path is not None:
        raise ValueError(
            f"--path: got it with --data {name!r}, expected one of them: --data takes the path of a table"
        )
    if not Path(name).exists() and not is_pattern(name):
        raise ValueError(
            f"--data: got {name!r}, expected a file or folder that exists, or one of {', '.join(sorted(DEFAULTS))}"
            + near_misses(name, DEFAULTS)
        )
    return DataConfig(**{**given, "name": "table", "path": Path(name)})


def _plan(path: Path, ranks: Ranks) -> ShardingPlan:
    """Return the plan in a file, which must not need more ranks than there are."""
    plan, given = read_plan(path), ranks.world_size
    if plan.num_ranks > given:
        raise ValueError(
            f"--plan: got a plan for {plan.num_ranks} ranks, expected one for {given}: start {plan.num_ranks} ranks "
            f"(torchrun --nproc-per-node {plan.num_ranks} -m recsys.train ...) or make a plan for {given} (recsys-plan "
            f"--world-size {given})"
        )
    return plan


def _check_results(args: argparse.Namespace, ranks: Ranks) -> None:
    if args.out is None and args.checkpoint_dir is None:
        raise ValueError("--out: missing, expected the file to write, or --checkpoint-dir, or both")
    if args.checkpoint_dir is None and (args.resume or args.checkpoint_every):
        option = "--resume" if args.resume else "--checkpoint-every"
        raise ValueError(f"{option}: got it without --checkpoint-dir, expected both")
    if ranks.rank > 0:
        return  # rank 0 checks for all ranks; others could find its half-written files
    if args.out is not None and (args.out.is_dir() or not args.out.absolute().parent.is_dir()):
        raise ValueError(f"--out: got {str(args.out)!r}, expected a file in a folder that exists")
    folder = args.checkpoint_dir
    if folder is not None and (folder.is_file() or not folder.absolute().parent.is_dir()):
        raise ValueError(f"--checkpoint-dir: got {str(folder)!r}, expected a folder in one that exists")
    if folder is not None:
        check_free(folder)
    if folder is not None and not args.resume and folder.is_dir() and _files(folder):
        raise ValueError(
            f"--checkpoint-dir: got {str(folder)!r}, which is not empty; --resume goes on from what is there"
        )


def _files(folder: Path) -> list[Path]:
    """Return what a folder holds beside the lock of a job that has ended."""
    return [path for path in folder.iterdir() if path.name != LOCK_NAME]


def _check_room(args: argparse.Namespace, job: TrainJob) -> None:
    """Check that the tables fit where they will be written, before the training instead of after it."""
    num_bytes = sum(
        4 * table["num_embeddings"] * table["embedding_dim"] for table in job.arguments()["tables"]
    )
    for path in (args.out, args.checkpoint_dir):
        if path is not None:
            check_room(path, num_bytes)


def _finish(args: argparse.Namespace, job: TrainJob, trained: Trained, ranks: Ranks, started: float) -> None:
    """Write the model and print the results; rank 0 only."""
    dataset, epochs, kept = job.dataset, trained.epochs, trained.kept
    reference = dataset.reference()
    measured = kept.labels or {dataset.schema.label_names[0]: kept.held_out}
    one_class = [text for name, metrics in measured.items() if (text := metrics.one_class_text(name))]
    for text in one_class:
        _complain(text)
    info = {
        "data": dataset.name,
        "dense_names": list(dataset.dense_names),
        "feature_names": [name for table in dataset.tables for name in table.feature_names],
        "num_train_rows": dataset.num_train_rows,
        "num_held_out_rows": dataset.num_held_out_rows,
        "epoch": kept.number,
        "metrics": kept.held_out.to_json(),
        **({"labels": {name: m.to_json() for name, m in kept.labels.items()}} if kept.labels else {}),
        "reference": None if reference is None else asdict(reference),
        "train": asdict(job.train),
        "world_size": ranks.world_size,
        "torch": str(torch.__version__),
    }
    examples = job.example_rows
    if trained.state_dict is not None:
        checkpoint = Checkpoint(
            factory=job.factory,
            arguments=trained.arguments,
            state_dict=trained.state_dict,
            info=info | examples,
        )
        save_checkpoint(args.out, checkpoint)
    saved = [path for path in (args.out, args.checkpoint_dir) if path is not None]
    if not args.json:
        if len(epochs) < job.train.epochs:
            waited = f"{job.train.patience} in a row were not better"
            print(f"stopped after epoch {len(epochs)} of {job.train.epochs}: {waited}")
        if len(epochs) > 1:
            print(kept_text(epochs, kept, job.train.best_metric))
        print(summary_text(kept, reference, saved))
        return
    result = {
        "out": None if args.out is None else str(args.out),
        "checkpoint_dir": None if args.checkpoint_dir is None else str(args.checkpoint_dir),
        "seconds": round(time.perf_counter() - started, 3),
        "epochs": [_epoch_to_json(epoch) for epoch in epochs],
        "plan": trained.plan.to_json(),
        "notices": [*dataset.notices, *one_class],
        **info,
    }
    print(json.dumps(result))


def _epoch_to_json(epoch: Epoch) -> dict[str, Any]:
    return {
        "number": epoch.number,
        "train_loss": epoch.train_loss,
        "examples_per_second": round(epoch.examples_per_second, 1),
        **epoch.held_out.to_json(),
        **({"labels": {name: m.to_json() for name, m in epoch.labels.items()}} if epoch.labels else {}),
    }


@contextmanager
def _callback(
    args: argparse.Namespace, ranks: Ranks, dataset: Dataset, num_epochs: int
) -> Iterator[Callback]:
    """Yield the callbacks of this rank; only rank 0 has any."""
    with ExitStack() as stack:
        callbacks: list[Callback] = []
        if args.tensorboard is not None and ranks.rank == 0:
            callbacks.append(stack.enter_context(TensorBoardCallback(args.tensorboard)))
        if not args.json and ranks.rank == 0:
            callbacks.append(stack.enter_context(ConsoleCallback(dataset, num_epochs)))
        yield CallbackList(callbacks)


def _is_lost_rank(error: RuntimeError) -> bool:
    """Return whether a collective failed because another rank ended, which has reported the reason itself."""
    return isinstance(error, dist.DistError) or ("gloo" in str(error) and "peer" in str(error))


def _complain(text: str) -> None:
    """Write an error to stderr, with the rank if there are several; in one write, so that ranks' lines do not mix."""
    rank = f"rank {os.environ['RANK']}: " if "RANK" in os.environ else ""
    sys.stderr.write(f"recsys-train: {rank}{text}\n")


def _given(args: argparse.Namespace, config: type[Any]) -> dict[str, Any]:
    """Return the options that were given and are fields of the config."""
    values = {field.name: getattr(args, field.name, None) for field in fields(config)}
    return {name: value for name, value in values.items() if value is not None}


def _count_or_none(text: str) -> int:
    return 0 if text == "0" else count(text)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="recsys-train",
        description="Train a model on a table of examples and save a checkpoint that recsys-export takes.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    data = parser.add_argument_group("data")
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
    out = parser.add_argument_group("result")
    out.add_argument("--out", type=Path, metavar="FILE", help="write the whole model to one file")
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
    ranks = parser.add_argument_group("ranks (torchrun starts them; without it there is one)")
    ranks.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of each rank (default cpu)")
    ranks.add_argument(
        "--plan", type=Path, metavar="FILE", help="a sharding plan; the planner makes one otherwise"
    )
    _add_model(parser.add_argument_group("model"))
    _add_training(parser.add_argument_group("training"))
    add_program_options(parser)
    return parser


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


if __name__ == "__main__":
    sys.exit(main())
