"""The file that repeats a training: its options, with their defaults, its schema and the documents of its own file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from recsys.base.files import replacing
from recsys.data.examples import Dataset
from recsys.errors import SchemaError
from recsys.inputs.schema import Schema
from recsys.options.sections import document_lines, value_text
from recsys.options.table import Option
from recsys.train.commands.sources import DataConfig, open_dataset
from recsys.train.commands.train_options import COMMAND
from recsys.train.config import ModelConfig, RunConfig, TrainConfig
from recsys.train.job import TrainJob

#: The name in a run's directory.
RUN_NAME = "run.toml"
_HEAD = "# Written by recsys-train {version}: recsys-train --config repeats this training.\n"
# How a run begins, what it tells others, and what the schema says.
_LEFT_OUT = (
    *("json", "resume", "log", "tensorboard", "publish", "publish_every", "artifact"),
    *("labels", "ignore", "schema", "sweep", "sweep_runs", "sweep_pruner"),
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a file of options says to ``fit``.

    Attributes:
        data: The path of a table, or an opened source; None if it names none.
        schema: The schema or its file; None if it has none.
        labels: The labels, where there is no schema.
        init_from: A model to start from; None for none.
        settings: The other settings, with those of the call.
    """

    data: Path | Dataset | None
    schema: Schema | Path | None
    labels: tuple[str, ...]
    init_from: Path | None
    settings: dict[str, Any]


def read_run(path: Path, settings: Mapping[str, Any]) -> Run:
    """Read a file of options of recsys-train.

    Args:
        path: The file.
        settings: Those of a call of ``fit``, which beat the file.

    Raises:
        ConfigError: The file is not readable, or has an unknown key or a wrong value.
        ValueError: Its schema is not valid, or its source cannot be opened.
    """
    found, documents = COMMAND.read(path)
    schema = found.get("schema")
    if schema is None and "schema" in documents:
        schema = _schema(documents["schema"])
    names = {field.name for config in (ModelConfig, TrainConfig, RunConfig) for field in fields(config)}
    both: dict[str, Any] = {name: value for name, value in found.items() if name in names} | dict(settings)
    data = found.get("data")
    if isinstance(data, str):
        of_source: dict[str, Any] = {
            name: found[name] for name in ("path", "limit_rows", "hash_rows", "seed") if name in found
        }
        data = open_dataset(DataConfig(name=data, **of_source))
    elif schema is None:
        of_table: dict[str, Any] = {name: found[name] for name in ("hash_rows", "ignore") if name in found}
        both = of_table | both
    if not isinstance(data, Dataset) and "limit_rows" in found:
        both = {"limit_rows": found["limit_rows"], **both}
    return Run(
        data=data,
        schema=schema,
        labels=tuple(found.get("labels", ())),
        init_from=found.get("init_from"),
        settings=both,
    )


def run_file(out: Path) -> Path:
    """Return where the file lies beside a model."""
    return out.with_suffix(".run.toml")


def schema_of(documents: Mapping[str, Any], args: argparse.Namespace) -> Schema | None:
    """Return the schema in a file of options; None if it has none, or a flag gives another.

    Raises:
        ValueError: It is not a valid schema, or other options tell what columns are.
    """
    if "schema" not in documents or "schema" in args.given:
        return None
    for name in ("labels", "ignore"):
        if getattr(args, name):
            raise ValueError(f"{name}: got them with [schema], expected one of the two")
    return _schema(documents["schema"])


def _schema(document: Any) -> Schema:
    try:
        return Schema.from_json(document)
    except SchemaError as error:
        raise ValueError(f"--config: [schema]: {error}") from None


def write_run(path: Path, args: argparse.Namespace, job: TrainJob, source: DataConfig) -> None:
    """Write the file of a training; paths in it are relative to its folder where they lie below that.

    Args:
        path: The file.
        args: The parsed options.
        job: What they made.
        source: The data.
    """
    from recsys import __version__

    lines = [_HEAD.format(version=__version__)]
    for group in COMMAND.groups:
        found = dict(_values(group.options, args, job, source))
        if found:
            lines += [
                f"[{group.section}]",
                *(f"{key} = {_text(value, path)}" for key, value in found.items()),
                "",
            ]
    if source.name == "table" and job.start is None:
        lines += document_lines("schema", job.dataset.schema.to_json())
    export = args.documents.get("export", {})
    if args.out is not None:
        export = {"checkpoint": _relative(args.out, path), **export}
    if export:
        lines += document_lines("export", export)
    with replacing(path) as new:
        new.write_text("\n".join(lines).replace("\n\n\n", "\n\n").rstrip("\n") + "\n", encoding="utf-8")


def _values(
    options: tuple[Option, ...], args: argparse.Namespace, job: TrainJob, source: DataConfig
) -> Iterator[tuple[str, Any]]:
    """Yield keys and values of options, in force or given."""
    # A model to start from has its own sizes.
    configs = [job.train, job.run, *([job.model] if job.start is None else [])]
    for option in options:
        name = option.attribute
        if name in _LEFT_OUT or (name == "checkpoint_dir" and args.out is not None):
            continue
        if name == "hash_rows" and source.name != "criteo":
            continue  # the schema says it
        held = next((config for config in configs if hasattr(config, name)), None)
        value = getattr(args, name) if held is None else getattr(held, name)
        is_set = held is not None or name in args.given or option.default is not None
        if is_set and value is not None and value is not False and value not in ((), [], ""):
            yield option.key, value


def _text(value: Any, path: Path) -> str:
    if isinstance(value, list | tuple):
        return value_text([_relative(item, path) for item in value])
    return value_text(_relative(value, path))


def _relative(value: Any, path: Path) -> Any:
    """Return a path as it stands in a file: relative to its folder if it lies below that, else absolute."""
    if not isinstance(value, Path):
        return value
    folder = path.absolute().parent
    found = value.absolute()
    return str(found.relative_to(folder) if found.is_relative_to(folder) else found)
