"""recsys-train: train a model, print its metrics on held-out data, save a checkpoint."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

import torch
from torch import distributed as dist

from recsys.base.files import check_room
from recsys.base.terminal import announced
from recsys.checkpoint import save_checkpoint
from recsys.checkpoint.lock import LOCK_NAME, check_free
from recsys.data.examples import Dataset
from recsys.errors import CheckpointWriteError
from recsys.train.callbacks import Callback, CallbackList, ConsoleCallback
from recsys.train.commands.jobs import complain, loggers, prepare
from recsys.train.commands.run_file import RUN_NAME, run_file, write_run
from recsys.train.commands.sources import DataConfig, open_dataset
from recsys.train.commands.train_options import given, parse
from recsys.train.config import (
    TrainConfig,
)
from recsys.train.job import Trained, TrainJob, train_over_ranks
from recsys.train.loop import DivergedError
from recsys.train.report import checkpoint_of, report_on
from recsys.train.stepping.ranks import Ranks, find_ranks
from recsys.train.sweeping.sweep import sweep

# Lines on the data before the training.
_NUM_NOTICES = 6


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    args = parse(argv)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(args.threads)
    try:
        return _run(args)
    except (CheckpointWriteError, DivergedError, OSError, MemoryError) as error:
        complain(f"failed: {str(error) or type(error).__name__}")
        return 1
    except ValueError as error:
        complain(str(error))
        return 2
    except RuntimeError as error:
        if not _is_lost_rank(error):
            raise
        complain("failed: another rank has ended")
        return 1
    except KeyboardInterrupt:
        complain("interrupted")
        return 1
    finally:
        torch.set_num_threads(threads_before)


def _run(args: argparse.Namespace) -> int:
    started = time.perf_counter()
    ranks = find_ranks(args.device)
    TrainConfig(**given(args, TrainConfig)).check_device(args.device)
    if args.sweep is not None:
        return sweep(args, ranks)
    _check_results(args, ranks)
    reading = nullcontext() if ranks.rank else announced("recsys-train", f"reading {args.data}")
    job, source = prepare(args, ranks, lambda config: _read(config, reading))
    dataset = job.dataset
    if ranks.rank == 0:
        _check_room(args, job)
        for notice in dataset.notices[:_NUM_NOTICES]:
            complain(notice)
        more = len(dataset.notices) - _NUM_NOTICES
        if more > 0:
            complain(f"{more} more such lines: --json gives all")
        if args.checkpoint_dir is not None:  # for --resume
            args.checkpoint_dir.mkdir(exist_ok=True)
            write_run(args.checkpoint_dir / RUN_NAME, args, job, source)
    with _callback(args, ranks, job) as callback:
        trained = train_over_ranks(job, ranks, callback, whole=args.out is not None)
    if ranks.rank == 0:
        _finish(args, job, trained, ranks, started)
        if args.out is not None:
            write_run(run_file(args.out), args, job, source)
    return 0


def _read(config: DataConfig, reading: AbstractContextManager[object]) -> Dataset:
    with reading:
        return open_dataset(config)


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
    """Return what a folder holds, except the lock and the options of a job that has ended."""
    return [path for path in folder.iterdir() if path.name not in (LOCK_NAME, RUN_NAME)]


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
    report = report_on(job, trained, ranks.world_size)
    for notice in report.notices[len(job.dataset.notices) :]:
        complain(notice)
    if trained.state_dict is not None:
        save_checkpoint(args.out, checkpoint_of(job, trained, report))
    saved = [path for path in (args.out, args.checkpoint_dir) if path is not None]
    if not args.json:
        print("\n".join([str(report), *(f"saved {path}" for path in saved)]))
        return
    result = {
        "out": None if args.out is None else str(args.out),
        "checkpoint_dir": None if args.checkpoint_dir is None else str(args.checkpoint_dir),
        "seconds": round(time.perf_counter() - started, 3),
        "plan": trained.plan.to_json(),
        **report.to_json(),
    }
    print(json.dumps(result))


@contextmanager
def _callback(args: argparse.Namespace, ranks: Ranks, job: TrainJob) -> Iterator[Callback]:
    """Yield the callbacks of this rank; only rank 0 has any."""
    with ExitStack() as stack:
        callbacks: list[Callback] = []
        if ranks.rank == 0:
            callbacks += [stack.enter_context(logger) for logger in loggers(args, job)]
        if not args.json and ranks.rank == 0:
            callbacks.append(stack.enter_context(ConsoleCallback(job.dataset, job.train.epochs)))
        yield CallbackList(callbacks)


def _is_lost_rank(error: RuntimeError) -> bool:
    """Return whether a collective failed because another rank ended, which has reported the reason itself."""
    return isinstance(error, dist.DistError) or ("gloo" in str(error) and "peer" in str(error))


if __name__ == "__main__":
    sys.exit(main())
