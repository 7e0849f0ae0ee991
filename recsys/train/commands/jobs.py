"""From options to a job: the data, the schema, the model and its settings."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from recsys.base.cli import near_misses
from recsys.checkpoint.run import newest
from recsys.data.examples import Dataset
from recsys.data.tables.reading.files import is_pattern
from recsys.inputs.schema import Schema
from recsys.sharding.plan.plan import ShardingPlan, read_plan
from recsys.train.callbacks import Callback
from recsys.train.commands.defaults import DEFAULTS
from recsys.train.commands.run_file import schema_of
from recsys.train.commands.sources import DataConfig
from recsys.train.commands.train_options import given
from recsys.train.config import PUBLISH_EVERY_S, ModelConfig, RunConfig, TrainConfig
from recsys.train.job import TrainJob, next_item_columns
from recsys.train.loggers import open_logger
from recsys.train.loggers.logged_numbers import settings_of
from recsys.train.publishing import Publishing
from recsys.train.stepping.ranks import Ranks
from recsys.train.warm_start import WarmStart, read_start


def prepare(
    args: argparse.Namespace, ranks: Ranks, read: Callable[[DataConfig], Dataset]
) -> tuple[TrainJob, DataConfig]:
    """Return the job of parsed options, and its data.

    Args:
        args: The options.
        ranks: This rank among the others.
        read: Opens the data.

    Raises:
        ValueError: Options or data are wrong.
    """
    start = None if args.init_from is None else read_start(args.init_from)
    named = [name for name in given(args, ModelConfig) if start is not None]
    if named:
        raise ValueError(
            f"--{named[0].replace('_', '-')}: got it with --init-from, whose model has its own sizes"
        )
    source = replace(source_of(args), inputs=_known_schema(args, start))
    defaults = DEFAULTS[source.name]
    model = replace(defaults.model, **given(args, ModelConfig))
    next_item = model.next_item if start is None else next_item_columns(start.arguments)
    source = replace(source, next_item=next_item)
    job = TrainJob(
        dataset=read(source),
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
    return job, source


def _known_schema(args: argparse.Namespace, start: WarmStart | None) -> Schema | None:
    """Return the schema of the model that the training starts or continues from; None for a new one.

    What is inferred may differ between releases; a run continues with the schema that it began with.
    """
    if start is not None:
        return start.schema
    in_file = schema_of(args.documents, args)
    if in_file is not None:
        return in_file
    is_inferred = not given(args, DataConfig).keys() & {"schema", "labels", "hash_rows"}
    if not args.resume or not is_inferred or newest(args.checkpoint_dir) is None:
        return None
    return read_start(args.checkpoint_dir).schema


def source_of(args: argparse.Namespace) -> DataConfig:
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
        log=complain,
    )


def loggers(args: argparse.Namespace, job: TrainJob, name: str = "") -> list[Callback]:
    """Return the loggers of ``--log``.

    Args:
        args: The options.
        job: The training.
        name: The name of the run.

    Raises:
        ValueError: A kind is unknown, or its package is not installed.
    """
    texts = [*args.log, *([] if args.tensorboard is None else [f"tensorboard:{args.tensorboard}"])]
    settings = settings_of(job.dataset.name, job.model if job.start is None else None, job.train)
    return [open_logger(text, settings, name) for text in texts]


def complain(text: str) -> None:
    """Write an error to stderr, with the rank if there are several; in one write, so that ranks' lines do not mix."""
    rank = f"rank {os.environ['RANK']}: " if "RANK" in os.environ else ""
    sys.stderr.write(f"recsys-train: {rank}{text}\n")
