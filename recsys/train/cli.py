"""recsys-train: train a DLRM, print how good it is on held-out data, save a checkpoint."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch

from recsys.checkpoint import Checkpoint, save_checkpoint
from recsys.train.config import FACTORY, ModelConfig, RunConfig, TrainConfig
from recsys.train.event_files import EventFileWatcher
from recsys.train.examples import Dataset
from recsys.train.loop import DivergedError, train
from recsys.train.report import PeopleWatcher, summary_text
from recsys.train.sources import DEFAULTS, SYNTHETIC_ROWS, SourceConfig, open_dataset
from recsys.train.watch import Watcher, Watchers

_EXAMPLES = """\
examples:
  recsys-train --data synthetic --out model.pt
  recsys-train --data movielens --path data/ml-100k --out model.pt
  recsys-train --data criteo --path train.txt --hash-rows 1000000 --limit-rows 5000000 --out model.pt

The last 10 % of the rows (by time) are held out. The results go to stdout, a progress bar to stderr where that
is a terminal. Exit status: 0 the checkpoint is saved, 1 the training failed, 2 wrong options or data.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    args = _parser().parse_args(argv)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(args.threads)
    try:
        return _run(args)
    except ValueError as error:
        print(f"recsys-train: {error}", file=sys.stderr)
        return 2
    except (DivergedError, OSError, MemoryError) as error:
        print(f"recsys-train: failed: {str(error) or type(error).__name__}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("recsys-train: interrupted, nothing was saved", file=sys.stderr)
        return 1
    finally:
        torch.set_num_threads(threads_before)


def _run(args: argparse.Namespace) -> int:
    started = time.perf_counter()
    if args.out.is_dir() or not args.out.absolute().parent.is_dir():
        raise ValueError(f"--out: got {str(args.out)!r}, expected a file in a folder that exists")
    defaults = DEFAULTS[args.data]
    model_config = replace(defaults.model, **_given(args, ModelConfig))
    config = replace(defaults.train, **_given(args, TrainConfig))
    dataset = open_dataset(SourceConfig(name=args.data, **_given(args, SourceConfig)))
    run = RunConfig(**_given(args, RunConfig))
    with _watcher(args, dataset, config.epochs) as watcher:
        model, epochs = train(dataset, model_config, config, watcher, run)
    reference = dataset.reference()
    info = {
        "data": dataset.name,
        "dense_names": list(dataset.dense_names),
        "feature_names": [name for table in dataset.tables for name in table.feature_names],
        "num_train_rows": dataset.num_train_rows,
        "num_held_out_rows": dataset.num_held_out_rows,
        "metrics": epochs[-1].held_out.to_json(),
        "reference": None if reference is None else asdict(reference),
        "train": asdict(config),
        "torch": str(torch.__version__),
    }
    checkpoint = Checkpoint(
        factory=FACTORY,
        arguments=model_config.arguments(dataset),
        state_dict=model.state_dict(),
        info=info,
    )
    save_checkpoint(args.out, checkpoint)
    if args.json:
        rows = [
            {
                "number": e.number,
                "train_loss": e.train_loss,
                "examples_per_second": round(e.examples_per_second, 1),
                **e.held_out.to_json(),
            }
            for e in epochs
        ]
        seconds = round(time.perf_counter() - started, 3)
        print(json.dumps({"out": str(args.out), "seconds": seconds, "epochs": rows, **info}))
    else:
        print(summary_text(epochs[-1].held_out, reference, args.out))
    return 0


@contextmanager
def _watcher(args: argparse.Namespace, dataset: Dataset, num_epochs: int) -> Iterator[Watcher]:
    with ExitStack() as stack:
        watchers: list[Watcher] = []
        if args.tensorboard is not None:
            watchers.append(stack.enter_context(EventFileWatcher(args.tensorboard)))
        if not args.json:
            watchers.append(stack.enter_context(PeopleWatcher(dataset, num_epochs)))
        yield Watchers(watchers)


def _given(args: argparse.Namespace, config: type[Any]) -> dict[str, Any]:
    """The options that were given and are fields of the config."""
    values = {field.name: getattr(args, field.name, None) for field in fields(config)}
    return {name: value for name, value in values.items() if value is not None}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="recsys-train",
        description="Train a DLRM and save a checkpoint that recsys-export takes.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    data = parser.add_argument_group("data")
    data.add_argument("--data", required=True, choices=sorted(DEFAULTS), help="the data source")
    data.add_argument(
        "--path", type=Path, help="the file (criteo), folder (movielens) or either (parquet) to read"
    )
    data.add_argument(
        "--schema", type=Path, metavar="FILE", help="JSON that says which Parquet column is what"
    )
    data.add_argument(
        "--limit-rows",
        type=_count,
        metavar="N",
        help=f"use the first N rows only (synthetic: the length of the stream, default {SYNTHETIC_ROWS})",
    )
    data.add_argument(
        "--hash-rows", type=_count, metavar="R", help="rows of each Criteo table (default 100000)"
    )
    data.add_argument("--prefetch", type=_count, metavar="N", help="batches to read ahead (default 4)")
    out = parser.add_argument_group("result")
    out.add_argument("--out", required=True, type=Path, metavar="FILE", help="the checkpoint to write")
    out.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    out.add_argument("--tensorboard", type=Path, metavar="DIR", help="write event files for TensorBoard")
    out.add_argument(
        "--log-every", type=_count, metavar="N", help="steps between lines on the training (default 500)"
    )
    _add_training(parser.add_argument_group("training (defaults depend on the data)"))
    return parser


def _add_training(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--epochs", type=_count, metavar="N", help="passes over the training rows")
    group.add_argument("--batch-size", type=_count, metavar="B", help="rows per step")
    group.add_argument("--seed", type=int, default=0, help="the same seed gives the same model (default 0)")
    group.add_argument("--threads", type=_count, default=1, metavar="N", help="CPU threads (default 1)")
    group.add_argument("--optimizer", choices=("adam", "adagrad"), help="of the dense layers")
    group.add_argument("--learning-rate", type=float, metavar="X", help="of the dense layers")
    group.add_argument(
        "--row-learning-rate", type=float, metavar="X", help="of the tables (row-wise Adagrad)"
    )
    group.add_argument("--row-weight-decay", type=float, metavar="X", help="of the tables' touched rows")
    group.add_argument("--embedding-dim", type=_count, metavar="D", help="of every table")
    group.add_argument(
        "--dense-layers", type=_sizes, metavar="N,N", help="layers on dense features, before one of size D"
    )
    group.add_argument("--over-layers", type=_sizes, metavar="N,N", help="layers over the interactions")


def _count(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number of at least 1")
    return number


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
