"""recsys-train: train a model, print its metrics on held-out data, save a checkpoint."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from torch import distributed as dist

from recsys.base.cli import near_misses
from recsys.base.files import check_room
from recsys.base.terminal import announced
from recsys.checkpoint import save_checkpoint
from recsys.checkpoint.lock import LOCK_NAME, check_free
from recsys.checkpoint.run import newest
from recsys.data.examples import Dataset
from recsys.data.tables.reading.files import is_pattern
from recsys.errors import CheckpointWriteError
from recsys.inputs.schema import Schema
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.plan.plan_file import read_plan
from recsys.train.callbacks import Callback, CallbackList, ConsoleCallback, TensorBoardCallback
from recsys.train.commands.defaults import DEFAULTS
from recsys.train.commands.sources import DataConfig, open_dataset
from recsys.train.commands.train_options import given, parse
from recsys.train.config import (
    PUBLISH_EVERY_S,
    ModelConfig,
    RunConfig,
    TrainConfig,
)
from recsys.train.job import Trained, TrainJob, next_item_columns, train_over_ranks
from recsys.train.loop import DivergedError
from recsys.train.publishing import Publishing
from recsys.train.ranks import Ranks, find_ranks
from recsys.train.report import checkpoint_of, report_on
from recsys.train.warm_start import WarmStart, read_start

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
    named = [name for name in given(args, ModelConfig) if start is not None]
    if named:
        raise ValueError(
            f"--{named[0].replace('_', '-')}: got it with --init-from, whose model has its own sizes"
        )
    source = replace(_source(args), inputs=_known_schema(args, start))
    defaults = DEFAULTS[source.name]
    model = replace(defaults.model, **given(args, ModelConfig))
    next_item = model.next_item if start is None else next_item_columns(start.arguments)
    source = replace(source, next_item=next_item)
    reading = nullcontext() if ranks.rank else announced("recsys-train", f"reading {args.data}")
    with reading:
        dataset = open_dataset(source)
    job = TrainJob(
        dataset=dataset,
        model=model,
        train=replace(defaults.train, **given(args, TrainConfig)),
        run=RunConfig(**given(args, RunConfig)),
        plan=None if args.plan is None else _plan(args.plan, ranks),
        checkpoint_dir=args.checkpoint_dir,
        checkpoint_every=args.checkpoint_every,
        resume=args.resume,
        start=start,
        publishing=_publishing(args),
    )
    if ranks.rank == 0:
        _check_room(args, job)
        for notice in dataset.notices[:_NUM_NOTICES]:
            _complain(notice)
        more = len(dataset.notices) - _NUM_NOTICES
        if more > 0:
            _complain(f"{more} more such lines: --json gives all")
    with _callback(args, ranks, dataset, job.train.epochs) as callback:
        trained = train_over_ranks(job, ranks, callback, whole=args.out is not None)
    if ranks.rank == 0:
        _finish(args, job, trained, ranks, started)
    return 0


def _known_schema(args: argparse.Namespace, start: WarmStart | None) -> Schema | None:
    """Return the schema of the model that the training starts or continues from; None for a new one.

    What is inferred may differ between releases; a run continues with the schema that it began with.
    """
    if start is not None:
        return start.schema
    is_inferred = not given(args, DataConfig).keys() & {"schema", "labels", "hash_rows"}
    if not args.resume or not is_inferred or newest(args.checkpoint_dir) is None:
        return None
    return read_start(args.checkpoint_dir).schema


def _source(args: argparse.Namespace) -> DataConfig:
    """Return the data source: a name, or the path of a table."""
    name, options = str(args.data), given(args, DataConfig)
    options["labels"] = tuple(args.labels or ())
    options["ignore"] = tuple(args.ignore or ())
    if name == "parquet":  # its name in earlier releases
        name = "table"
    if name in DEFAULTS:
        return DataConfig(name=name, **options)
    if args.path is not None:
        raise ValueError(
            f"--path: got it with --data {name!r}, expected one of them: --data takes the path of a table"
        )
    if not Path(name).exists() and not is_pattern(name):
        raise ValueError(
            f"--data: got {name!r}, expected a file or folder that exists, or one of {', '.join(sorted(DEFAULTS))}"
            + near_misses(name, DEFAULTS)
        )
    return DataConfig(**{**options, "name": "table", "path": Path(name)})


def _plan(path: Path, ranks: Ranks) -> ShardingPlan:
    """Return the plan in a file, which must not need more ranks than there are."""
    plan, num_ranks = read_plan(path), ranks.world_size
    if plan.num_ranks > num_ranks:
        raise ValueError(
            f"--plan: got a plan for {plan.num_ranks} ranks, expected one for {num_ranks}: start {plan.num_ranks} "
            f"ranks (torchrun --nproc-per-node {plan.num_ranks} -m recsys.train ...) or make a plan for {num_ranks} "
            f"(recsys-plan --world-size {num_ranks})"
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


def _publishing(args: argparse.Namespace) -> Publishing | None:
    if args.publish is None:
        for option in ("artifact", "publish_every"):
            if getattr(args, option) is not None:
                raise ValueError(f"--{option.replace('_', '-')}: got it without --publish, expected both")
        return None
    if args.artifact is None:
        raise ValueError(
            "--artifact: missing, expected with --publish the artifact that servers have loaded: recsys-export makes "
            "one of the model that the training starts from (--init-from)"
        )
    return Publishing(
        destination=str(args.publish),
        artifact=args.artifact,
        every_s=PUBLISH_EVERY_S if args.publish_every is None else args.publish_every,
        log=_complain,
    )


def _files(folder: Path) -> list[Path]:
    """Return what a folder holds, except the lock of a job that has ended."""
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
    report = report_on(job, trained, ranks.world_size)
    for notice in report.notices[len(job.dataset.notices) :]:
        _complain(notice)
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


if __name__ == "__main__":
    sys.exit(main())
