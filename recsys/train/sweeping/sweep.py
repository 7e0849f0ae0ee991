"""A sweep: runs over values of options, one after the other, in one process that reads the data once."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from recsys.checkpoint import save_checkpoint
from recsys.data.examples import Dataset
from recsys.train.best import HIGHER_IS_BETTER, held_out
from recsys.train.callbacks import Callback, CallbackList
from recsys.train.commands.defaults import DEFAULTS
from recsys.train.commands.jobs import loggers, prepare, source_of
from recsys.train.commands.run_file import run_file, write_run
from recsys.train.commands.sources import DataConfig, open_dataset
from recsys.train.commands.train_options import COMMAND, SWEPT, given
from recsys.train.config import TrainConfig
from recsys.train.job import Trained, TrainJob, train_over_ranks
from recsys.train.report import checkpoint_of, report_on
from recsys.train.stepping.ranks import Ranks
from recsys.train.sweeping.page import write_page
from recsys.train.sweeping.pruning import PrunedError, Pruning
from recsys.train.sweeping.runs import RunsFile, SweepRun, ranked
from recsys.train.sweeping.space import Search, grid, read_space
from recsys.train.sweeping.text import print_runs, values_text

_NUM_RUNS = 20
_BEST_NAME, _PAGE_NAME = "best.pt", "sweep.html"
# Options that may change between calls, and those of the sweep itself.
_OF_CALL = ("config", "json", "out", "log", "tensorboard", "sweep", "sweep_runs", "threads")


class _DataError(ValueError):
    """The data cannot be read: no run can."""


def sweep(args: argparse.Namespace, ranks: Ranks) -> int:
    """Train the runs that are missing; print and write their table and page. Returns the exit status.

    Raises:
        ValueError: Options or the data are wrong, or the folder has another sweep.
    """
    _check(args, ranks)
    folder: Path = args.sweep
    space = read_space(args.documents["sweep"], SWEPT)
    combinations = grid(space)
    metric = TrainConfig(**given(args, TrainConfig)).best_metric
    metric = "loss" if metric == "last" else metric
    is_higher = metric in HIGHER_IS_BETTER
    num_runs = args.sweep_runs or (_NUM_RUNS if combinations is None else len(combinations))
    is_grid = combinations is not None and len(combinations) <= num_runs
    search = None if is_grid else Search(space, higher_is_better=is_higher, seed=args.seed)
    file = RunsFile(folder, _about(args, metric))
    if is_grid:
        num_runs = len(combinations or ())
    data = _Data()
    try:
        with _bar(num_runs, len(file.runs)) as bar:
            while len(file.runs) < num_runs:
                if search is None:
                    assert combinations is not None
                    values = combinations[len(file.runs)]
                else:
                    values = search.next(file.runs)
                trained, run = _run(_with(args, values), ranks, data, bar, (file.runs, values, metric))
                best = ranked([*file.runs, run], higher_is_better=is_higher)[0]
                if trained is not None and best is run and run.metric is not None:
                    _save_best(_with(args, values), *trained)
                file.add(run)
                bar.done(len(file.runs))
                if not args.json:
                    print(_line(run, num_runs, metric), flush=True)
    finally:
        runs = ranked(file.runs, higher_is_better=is_higher)
        if runs:
            write_page(folder / _PAGE_NAME, runs, metric, num_runs)
    return _finish(args, runs, metric, num_runs)


def _check(args: argparse.Namespace, ranks: Ranks) -> None:
    if not args.documents.get("sweep"):
        raise ValueError("--sweep: got no values to try, expected a table [sweep] in the file of --config")
    if ranks.world_size > 1:
        raise ValueError(f"--sweep: got {ranks.world_size} ranks, expected one")
    for name in ("checkpoint_dir", "checkpoint_every", "resume", "publish", "plan"):
        if getattr(args, name):
            raise ValueError(f"--{name.replace('_', '-')}: got it with --sweep, expected one of them")
    if args.sweep_pruner != "none":
        epochs = replace(DEFAULTS[source_of(args).name].train, **given(args, TrainConfig)).epochs
        if epochs < 2 and "epochs" not in args.documents["sweep"]:
            raise ValueError(
                f"--sweep-pruner: got {args.sweep_pruner} with 1 epoch, expected several: runs are compared after each "
                "epoch but the last"
            )
    folder = args.sweep
    if folder.is_file() or not folder.absolute().parent.is_dir():
        raise ValueError(f"--sweep: got {str(folder)!r}, expected a folder in one that exists")
    source_of(args)


def _about(args: argparse.Namespace, metric: str) -> dict[str, Any]:
    """Return what is swept, which must be the same to go on."""
    options = {name: getattr(args, name) for name in sorted(args.given) if name not in _OF_CALL}
    return {
        "sweep": args.documents["sweep"],
        "metric": metric,
        "options": {name: str(value) for name, value in options.items()},
        "schema": args.documents.get("schema"),
    }


def _with(args: argparse.Namespace, values: Mapping[str, Any]) -> argparse.Namespace:
    """Return the options of a run; the best model's file is their result."""
    known = {option.key: option for option in COMMAND.options}
    changed = argparse.Namespace(**vars(args))
    for key, value in values.items():
        setattr(changed, known[key].attribute, known[key].from_file(value))
    changed.given = args.given | {known[key].attribute for key in values} | {"out"}
    changed.out = args.out or args.sweep / _BEST_NAME
    return changed


class _Data:
    """Opens the data, once for runs that read it alike."""

    def __init__(self) -> None:
        self._config: DataConfig | None = None
        self._dataset: Dataset | None = None

    def read(self, config: DataConfig) -> Dataset:
        """Return the data set."""
        if self._dataset is None or self._config != config:
            try:
                self._dataset = open_dataset(config)
            except (ValueError, OSError) as error:
                raise _DataError(str(error)) from None
            self._config = config
        return self._dataset


class _Bar(Callback):
    """Moves a bar by the rows of each run."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task
        self._share = 0.0

    def begin(self, job: TrainJob) -> None:
        """Take the size of the next run."""
        self._share = 1 / max(job.dataset.num_train_rows * job.train.epochs, 1)

    def batch_done(self, num_rows: int) -> None:
        """Move the bar."""
        self._progress.update(self._task, advance=num_rows * self._share)

    def done(self, num_runs: int) -> None:
        """Set the bar to a number of runs."""
        self._progress.update(self._task, completed=num_runs)


@contextmanager
def _bar(num_runs: int, num_done: int) -> Iterator[_Bar]:
    console = Console(stderr=True)
    columns = (
        TextColumn("sweep"),
        BarColumn(),
        TextColumn("{task.completed:.1f}/{task.total} runs"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield _Bar(progress, progress.add_task("sweep", total=num_runs, completed=num_done))


def _run(
    args: argparse.Namespace,
    ranks: Ranks,
    data: _Data,
    bar: _Bar,
    about: tuple[Sequence[SweepRun], Mapping[str, Any], str],
) -> tuple[tuple[TrainJob, DataConfig, Trained] | None, SweepRun]:
    """Train once; whatever goes wrong in it is its result, and whatever it came to before it was ended early."""
    earlier, values, metric = about
    number, started, pruning = len(earlier) + 1, time.perf_counter(), None
    trained: Trained | None = None
    try:
        job, source = prepare(args, ranks, data.read)
        bar.begin(job)
        pruning = Pruning(args.sweep_pruner, metric, earlier, job.train.epochs)
        with ExitStack() as stack:
            of_run = [stack.enter_context(logger) for logger in loggers(args, job, f"run-{number}")]
            trained = train_over_ranks(job, ranks, CallbackList([bar, *of_run, pruning]), whole=True)
    except _DataError:
        raise
    except PrunedError:
        pass
    except Exception as error:  # a failed run is a row of the table
        text = str(error) or type(error).__name__
        seconds = round(time.perf_counter() - started, 3)
        return None, SweepRun(number=number, values=values, seconds=seconds, error=text)
    assert pruning is not None
    kept = pruning.best if trained is None else trained.kept
    metrics = {name: value for name, value in kept.held_out.to_json().items() if not name.startswith("num_")}
    run = SweepRun(
        number=number,
        values=values,
        seconds=round(time.perf_counter() - started, 3),
        epoch=kept.number,
        metrics={**metrics, metric: held_out(kept, metric)},
        metric=held_out(kept, metric),
        examples_per_second=round(pruning.epochs[-1].examples_per_second, 1),
        curve=pruning.curve,
        is_pruned=trained is None,
    )
    return None if trained is None else (job, source, trained), run


def _save_best(args: argparse.Namespace, job: TrainJob, source: DataConfig, trained: Trained) -> None:
    save_checkpoint(args.out, checkpoint_of(job, trained, report_on(job, trained, world_size=1)))
    write_run(run_file(args.out), args, job, source)


def _line(run: SweepRun, num_runs: int, metric: str) -> str:
    value = "undefined" if run.metric is None else f"{run.metric:.4f}"
    found = f"failed: {run.error}" if run.error else f"{metric} {value}"
    if run.is_pruned:
        found = f"pruned after epoch {len(run.curve)}: {found}"
    return f"run {run.number}/{num_runs}: {values_text(run.values)}: {found}, {run.seconds:.1f} s"


def _finish(args: argparse.Namespace, runs: list[SweepRun], metric: str, num_runs: int) -> int:
    best = runs[0] if runs and runs[0].metric is not None else None
    out = args.out or args.sweep / _BEST_NAME
    page = args.sweep / _PAGE_NAME
    if args.json:
        rows = [vars(run) for run in runs]
        print(
            json.dumps({"metric": metric, "runs": rows, "out": str(out) if best else None, "page": str(page)})
        )
    else:
        print_runs(runs, metric)
        print(f"wrote {page}")
        if best is not None:
            print(f"saved {out}, of run {best.number}")
    if best is None:
        sys.stderr.write(f"recsys-train: failed: none of {num_runs} runs has a held-out {metric}\n")
    return 0 if best is not None else 1
