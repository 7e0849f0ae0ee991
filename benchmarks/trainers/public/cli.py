"""The command ``python -m benchmarks.trainers``."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.table import Table

from benchmarks.measure.bars import MISSED_TEXT, Bar
from benchmarks.measure.command import Measured as Result
from benchmarks.measure.command import make_parser, run
from benchmarks.measure.tables import table_of
from benchmarks.trainers.plain_training import Products
from benchmarks.trainers.public.histories import histories, write_histories
from benchmarks.trainers.public.tables import GROUP, click_log, criteo, movielens, write_task
from benchmarks.trainers.public.task import TOP, Rows, Task
from benchmarks.trainers.public.turns import OURS, PLAIN, TRAINERS, Measured, Turns, take_turns
from recsys.base.cli import count
from recsys.data.lines import DataError
from recsys.inputs.schema import Schema
from recsys.metrics.exact import auc
from recsys.metrics.grouped import group_metrics

#: How many times the plain loop's rows ours should train, and those of public trainers.
TARGET, PUBLIC_TARGET = 1.5, 1.0
#: By how much our metric may be below another's, by the metric: about what another order of the rows changes.
QUALITY_TOLERANCES = {"auc": 0.003, "ndcg": 0.01}
_QUICK_ROWS = 3_000
# Batches of a turn of the products, and turns.
_PRODUCTS, _TURNS = 8, 9
_DESCRIPTION = """\
recsys-train beside a plain PyTorch loop and public trainers: the same rows, split and sizes. Each is a process of its
own with one thread, and they take turns, epoch after epoch. Rows per second are those of training alone. recsys-train
and the plain loop read their Parquet file and hash its texts in every epoch; public trainers have numbered columns in
memory. All have their own defaults for optimizers, rates and initial weights. Beside a ratio is its 90 % interval over
epochs; more --epochs make it narrower.

A DeepFM learns MovieLens-100k (--movielens), where a rating of at least 4 is a click, in the order of time; and a click
log of 13 numbers and 26 texts, drawn by a seed or Criteo's own (--criteo). The last 10 % are held out. A SASRec learns
which item of MovieLens a user rates next, and ranks the last one of each among all; its rows are next items.

The public trainers are not dependencies of this project. Install them into an environment of their own, beside torch.
"""
_EPILOG = f"""\
examples:
  python -m benchmarks.trainers --rows 20000
  python -m benchmarks.trainers --movielens data/ml-100k --peers-python peers/bin/python --check

exit codes: 0 measured, 2 bad usage or data, {MISSED_TEXT}
"""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What was measured on one table.

    Attributes:
        task: The table and the sizes.
        num_train_rows: Rows of an epoch.
        measured: By trainer.
        limit: Rows per processor second of the products of the deep layers alone; None for a SASRec.
    """

    task: Task
    num_train_rows: int
    measured: list[Measured]
    limit: float | None = None

    @property
    def metric(self) -> str:
        """The metric that says which epoch is the best."""
        return _METRICS[self.task.model][0]

    @property
    def base(self) -> Measured:
        """The trainer that others are compared with."""
        return next(found for found in self.measured if found.name != OURS)

    def of(self, name: str) -> Measured:
        """Return what was measured of a trainer."""
        return next(found for found in self.measured if found.name == name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return run(_parser(), argv, _measured, {DataError: 2})


def _measured(args: argparse.Namespace, folder: Path) -> Result:
    if args.peers_python is not None and not args.peers_python.is_file():
        raise DataError(f"--peers-python: got no file {args.peers_python}")
    found = []
    for number, write in enumerate(_tables(args).values()):
        of_table = folder / str(number)
        of_table.mkdir()
        found.append(_compared(write, of_table, args))
    return Result(
        data={"tables": [_json(one) for one in found]},
        shown=[_table(one) for one in found],
        bars=[bar for one in found for bar in bars_of(one)],
    )


#: Writes what all trainers get into a folder; returns the task and the number of rows of an epoch.
_Writer = Callable[[Path], tuple[Task, int]]


def _tables(args: argparse.Namespace) -> dict[str, _Writer]:
    limit = _QUICK_ROWS if args.quick else args.rows
    found: dict[str, _Writer] = {}

    def add(name: str, of: str, write: Callable[[str, Path], tuple[Task, int]]) -> None:
        if args.table in ("all", of):
            found[name] = partial(write, name)

    if args.movielens is not None:
        most = _QUICK_ROWS if args.quick else None
        table, schema = movielens(args.movielens)
        add("MovieLens", "movielens", partial(_write_rows, table.slice(0, most), schema))
        add("MovieLens, next items", "next-items", partial(_write_users, histories(table.slice(0, most))))
    if args.table in ("all", "clicks"):
        of_clicks = click_log(limit) if args.criteo is None else criteo(args.criteo, limit)
        add("click log" if args.criteo is None else "Criteo", "clicks", partial(_write_rows, *of_clicks))
    if not found:
        raise DataError(f"--table {args.table}: got no --movielens, expected its files")
    return found


def _write_rows(table: pa.Table, schema: Schema, name: str, folder: Path) -> tuple[Task, int]:
    task = write_task(name, table, schema, folder)
    return task, len(Rows.load(folder, "train"))


def _write_users(users: list[NDArray[np.int64]], name: str, folder: Path) -> tuple[Task, int]:
    return write_histories(name, users, folder)


def _compared(write: _Writer, folder: Path, args: argparse.Namespace) -> Comparison:
    task, num_rows = write(folder)
    held_out = Rows.load(folder, "held_out")
    groups = None
    if GROUP in task.features:
        groups = np.unique(held_out.ids[:, list(task.features).index(GROUP)], return_inverse=True)[1]
    turns = Turns(
        peers_python=args.peers_python,
        num_epochs=1 if args.quick else args.epochs,
        quality=partial(quality, labels=held_out.labels.astype(np.float64), groups=groups),
        progress=_say,
    )
    measured = take_turns(TRAINERS, task, folder, turns)
    limit = _limit(task) if task.model == "deepfm" else None
    return Comparison(task=task, num_train_rows=num_rows, measured=measured, limit=limit)


def _limit(task: Task) -> float:
    """Return the rows per processor second of the deep layers' products, the median of some turns."""
    num_rows = _PRODUCTS * task.batch_size
    products = Products([[task.width, *task.layers, 1]], task.batch_size, num_rows)
    took = []
    for _ in range(_TURNS):
        began = time.process_time()
        products.epoch()
        took.append(time.process_time() - began)
    return num_rows / statistics.median(took)


def quality(
    scores: NDArray[np.float64], *, labels: NDArray[np.float64], groups: NDArray[np.int64] | None
) -> dict[str, float]:
    """Return the AUC of the held-out rows, and the mean AUC within groups by their rows."""
    found = auc(scores, labels)
    qualities = {"auc": float("nan") if found is None else found}
    if groups is not None:
        values, weights = group_metrics(scores, labels, groups, TOP)["gauc"]
        known = ~np.isnan(values)
        qualities["gauc"] = (
            float(np.average(values[known], weights=weights[known])) if known.any() else np.nan
        )
    return qualities


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def bars_of(comparison: Comparison) -> list[Bar]:
    """Return the bars of speed, by processor time, and of quality, by the best epoch of each."""
    ours, name = comparison.of(OURS), comparison.task.name
    bars = []
    for other in comparison.measured:
        if other is ours or other.error or ours.error:
            continue
        target = TARGET if other.name == PLAIN else PUBLIC_TARGET
        bars.append(Bar(f"{name}, rows: {OURS} ÷ {other.name}", target, ours.ratio(other, "cpu_s").median))
        metric = comparison.metric
        gap = ours.best(metric) - other.best(metric)
        bars.append(Bar(f"{name}, {_NAMES[metric]}: {OURS} - {other.name}", -QUALITY_TOLERANCES[metric], gap))
    return bars


def _json(comparison: Comparison) -> dict[str, Any]:
    return {
        "task": asdict(comparison.task),
        "num_train_rows": comparison.num_train_rows,
        "limit": comparison.limit,
        "trainers": [asdict(found) for found in comparison.measured],
    }


def _table(comparison: Comparison) -> Table:
    task, sequence = comparison.task, comparison.task.sequence
    sizes = f"layers {'-'.join(map(str, task.layers))}"
    if task.model == "sasrec":
        sizes = (
            f"{sequence.num_layers} blocks of {sequence.num_heads} heads, histories of {sequence.max_history}, "
            f"dropout {sequence.dropout:g}"
        )
    title = (
        f"{task.name}: {comparison.num_train_rows:,} rows, {task.model} of width {task.embedding_dim}, {sizes}, batch "
        f"{task.batch_size}"
    )
    if comparison.limit is not None:
        title += f"; products of the layers alone: {comparison.limit:,.0f} rows/processor s"
    rows = [_cells(found, comparison) for found in comparison.measured]
    return table_of(title, rows, texts=("trainer", "note"))


def _cells(found: Measured, comparison: Comparison) -> dict[str, str]:
    base, metric, num_rows = comparison.base, comparison.metric, comparison.num_train_rows
    ratio, metrics = f"÷ {base.name}", _METRICS[comparison.task.model]
    names = [_NAMES[one] for one in metrics]
    speeds = ("rows/s", "rows/processor s", ratio, "90 %")
    headings = ("trainer", *speeds, *names, "of epoch", "last", "peak MB", "note")
    cells = dict.fromkeys(headings, "") | {"trainer": found.name, "note": found.error}
    if found.error:
        return cells
    epoch = max(range(len(found.qualities)), key=lambda i: found.qualities[i][metric])
    best = found.qualities[epoch]
    if not base.error:
        times = found.ratio(base, "cpu_s")
        cells |= {ratio: f"{times.median:.2f}", "90 %": f"{times.least:.2f} to {times.most:.2f}"}
    return cells | {
        "rows/s": f"{found.rate(num_rows, 'wall_s'):,.0f}",
        "rows/processor s": f"{found.rate(num_rows, 'cpu_s'):,.0f}",
        **{_NAMES[one]: f"{best[one]:.4f}" for one in metrics if one in best},
        "of epoch": str(epoch + 1),
        "last": f"{found.qualities[-1][metric]:.4f}",
        "peak MB": f"{found.peak_mb:,.0f}",
    }


_NAMES = {"auc": "AUC", "gauc": "GAUC", "ndcg": f"NDCG@{TOP}", "hit_rate": f"hit rate@{TOP}"}
_METRICS = {"deepfm": ("auc", "gauc"), "sasrec": ("ndcg", "hit_rate")}


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("trainers", _DESCRIPTION, _EPILOG, has_bars=True)
    parser.add_argument("--quick", action="store_true", help="few rows, one epoch: does it run at all?")
    parser.add_argument(
        "--movielens",
        type=Path,
        metavar="PATH",
        help="MovieLens-100k as RecBole's atomic files: their name without .inter, .user, .item",
    )
    parser.add_argument(
        "--criteo", type=Path, metavar="FILE", help="Criteo's click log (default: a drawn one)"
    )
    tables = ("all", "movielens", "next-items", "clicks")
    parser.add_argument(
        "--table", choices=tables, default="all", help="of those that there are (default all)"
    )
    parser.add_argument(
        "--peers-python", type=Path, metavar="PATH", help="the Python that has the public trainers"
    )
    parser.add_argument(
        "--rows", type=count, default=60_000, metavar="N", help="of the click log (default 60000)"
    )
    parser.add_argument(
        "--epochs", type=count, default=4, metavar="N", help="turns of each trainer (default 4)"
    )
    return parser
