"""``fit``: a training in one call. ``recsys-train`` is the same for the command line and for several ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from recsys.base.cli import near_misses
from recsys.data.examples import Dataset
from recsys.inputs.schema import Schema
from recsys.train.callbacks import Callback, CallbackList, ConsoleCallback
from recsys.train.commands.defaults import DEFAULTS
from recsys.train.commands.run_file import read_run
from recsys.train.commands.sources import DataConfig, open_dataset
from recsys.train.config import ModelConfig, RunConfig, TrainConfig
from recsys.train.job import TrainJob, next_item_columns, train_over_ranks
from recsys.train.loggers import open_logger
from recsys.train.loggers.logged_numbers import settings_of
from recsys.train.model import Model
from recsys.train.report import Report, checkpoint_of, report_on
from recsys.train.stepping.ranks import ONE_RANK
from recsys.train.warm_start import read_start

_OF_DATA = ("limit_rows", "hash_rows")
_CONFIGS = (ModelConfig, TrainConfig, RunConfig)


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The result of ``fit``.

    Attributes:
        model: The model of the epoch that is kept; its ``checkpoint`` is what ``recsys-train --out`` writes.
        report: What was measured.
    """

    model: Model
    report: Report


def fit(
    data: Any = None,
    *,
    schema: Schema | str | Path | None = None,
    label: str | Sequence[str] = (),
    init_from: str | Path | None = None,
    callbacks: Sequence[Callback] | None = None,
    **settings: Any,
) -> Fitted:
    """Train a model on a table, in this process and with torch's threads.

    The same data, settings, threads and versions give the same model bit for bit, and the same as ``recsys-train``.

    Args:
        data: A file, a folder, a pattern, or a frame of pandas, polars or Arrow; or an opened ``Dataset``. None with a
            ``config`` that names one.
        schema: What each column is, or the TOML file that says so; None infers it.
        label: The labels, of a table without a schema: columns, or what is positive in them (``rating>=4``). Found by
            their names if empty.
        init_from: A model file or a run's directory to start from, with its schema and sizes.
        callbacks: Called as the training proceeds; None prints lines, and a progress bar on a terminal.
        settings: Fields of ``ModelConfig``, ``TrainConfig`` and ``RunConfig``, such as ``model="dcn"``, ``epochs=3``;
            ``limit_rows`` and ``hash_rows`` of the data, ``ignore``, columns to leave out, and ``log``, such as
            "mlflow". The defaults are those of ``recsys-train``. ``config`` is a file of its options, such as the one
            that it writes beside a model; arguments beat it, and its results, ranks, threads and publishing are the
            command's alone.

    Raises:
        TypeError: A setting does not exist.
        ValueError: A setting or the data is wrong; the message names the field or the line.
        DivergedError: The loss is no longer a number.
    """
    file = settings.pop("config", None)
    if file is not None:
        run = read_run(Path(file), settings)
        settings = run.settings
        data = run.data if data is None else data
        schema = run.schema if schema is None and not label else schema
        label = run.labels if schema is None and not label else label
        init_from = run.init_from if init_from is None else init_from
    if data is None:
        raise ValueError("data: got None, expected a table, or a config that names one")
    log = settings.pop("log", ())
    of_data, by_config = _sorted_out(settings)
    start = None if init_from is None else read_start(Path(init_from))
    if start is not None and by_config[ModelConfig]:
        named = next(iter(by_config[ModelConfig]))
        raise ValueError(f"{named}: got it with init_from, whose model has its own sizes")
    defaults = DEFAULTS[data.name if isinstance(data, Dataset) else "table"]
    model = replace(defaults.model, **by_config[ModelConfig])
    if isinstance(data, Dataset):
        if schema is not None or label or of_data:
            raise ValueError("data: got an opened Dataset with a schema, labels or options to read one")
        dataset = data
    else:
        config = DataConfig(
            name="table",
            path=data,
            labels=(label,) if isinstance(label, str) else tuple(label),
            schema=Path(schema) if isinstance(schema, str | Path) else None,
            inputs=schema if isinstance(schema, Schema) else None if start is None else start.schema,
            next_item=model.next_item if start is None else next_item_columns(start.arguments),
            **of_data,
        )
        dataset = open_dataset(config)
    job = TrainJob(
        dataset=dataset,
        model=model,
        train=replace(defaults.train, **by_config[TrainConfig]),
        run=RunConfig(**by_config[RunConfig]),
        start=start,
    )
    with ExitStack() as stack:
        given = [ConsoleCallback(dataset, job.train.epochs)] if callbacks is None else callbacks
        of_job = settings_of(dataset.name, model if start is None else None, job.train)
        loggers = [open_logger(text, of_job, "") for text in ([log] if isinstance(log, str) else log)]
        entered = [stack.enter_context(callback) for callback in [*given, *loggers]]
        trained = train_over_ranks(job, ONE_RANK, CallbackList(entered), whole=True)
    report = report_on(job, trained, world_size=1)
    return Fitted(model=Model(checkpoint_of(job, trained, report)), report=report)


def _sorted_out(
    settings: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[type[Any], dict[str, Any]]]:
    """Return the settings of the data, and those of each config."""
    of_data = {}
    by_config: dict[type[Any], dict[str, Any]] = {config: {} for config in _CONFIGS}
    config_of = {field.name: config for config in _CONFIGS for field in fields(config)}
    for name, value in settings.items():
        if name in _OF_DATA:
            of_data[name] = value
        elif name == "ignore":
            of_data[name] = (value,) if isinstance(value, str) else tuple(value)
        elif name in config_of:
            by_config[config_of[name]][name] = tuple(value) if isinstance(value, list) else value
        else:
            known = [*config_of, *_OF_DATA, "ignore"]
            raise TypeError(f"fit: got the setting {name!r}, which does not exist{near_misses(name, known)}")
    return of_data, by_config
