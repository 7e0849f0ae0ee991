"""The directory of a training run: its newest and its best checkpoint, and the contents of ``training.json``.

    run/latest              the name of the newest whole checkpoint, replaced in one step
    run/best                the name of that of the best epoch; not there if none was chosen
    run/lock                held by the job that trains (``recsys.checkpoint.lock``)
    run/step-00000100/      .metadata, *.distcp: torch.distributed.checkpoint; training.json: this file's subject

Everything here is plain data from an untrusted file and is checked when it is read.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recsys.base.files import read_json, replacing, sync
from recsys.base.json_checks import (
    a_list,
    check_format_version,
    json_field,
    mapping,
    shape,
    text,
    whole,
    wrong,
)
from recsys.checkpoint.dcp_metadata import METADATA_NAME
from recsys.checkpoint.single_file import check_plain
from recsys.errors import ArtifactError, CheckpointError

LATEST_NAME = "latest"
BEST_NAME = "best"
TRAINING_NAME = "training.json"
FORMAT = "recsys-training"
FORMAT_VERSION = 1
#: Prefixes of the names of the model's and the optimizers' tensors in ``.metadata``.
MODEL_PREFIX = "model."
OPTIMIZER_PREFIX = "optimizer."
# A step that is saved again gets another name, so that a name always has the same contents.
_STEP_NAME = re.compile(r"step-(\d{8,18})(?:\.(\d{1,6}))?", re.ASCII)
# Far more than the RNG states and positions of thousands of ranks need.
_MAX_JSON_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """The contents of ``training.json``.

    Attributes:
        step: Optimizer steps taken.
        factory: The factory of the model; None if it was not named.
        arguments: The factory's arguments.
        shared: The run's progress.
        ranks: For each rank of the saved run ``{"local": its own progress, "rng": its random number generators}``.
        plan: The sharding plan, as ``ShardingPlan.to_json`` gives it.
        optimizer: The optimizer's state except tensors: ``counters`` and ``values`` by name,
            ``column_widths`` of its tensors by name, ``param_groups`` (None if they are not kept).
    """

    step: int
    factory: str | None
    arguments: Mapping[str, Any]
    shared: Mapping[str, Any]
    ranks: tuple[Mapping[str, Any], ...]
    plan: Mapping[str, Any]
    optimizer: Mapping[str, Any]

    def dumps(self) -> str:
        """Return the file's text.

        Raises:
            CheckpointError: A value is not plain data.
        """
        data = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "step": self.step,
            "factory": self.factory,
            "arguments": dict(self.arguments),
            "shared": dict(self.shared),
            "ranks": [dict(rank) for rank in self.ranks],
            "plan": dict(self.plan),
            "optimizer": dict(self.optimizer),
        }
        check_plain(data, "training")
        return json.dumps(data, indent=1, allow_nan=False)


def free_name(run: Path, step: int) -> str:
    """Return a name for a step's checkpoint that the run does not have yet."""
    name = f"step-{step:08d}"
    taken = {path.name for path in steps(run)}
    return next(n for n in (name, *(f"{name}.{i}" for i in range(1, len(taken) + 2))) if n not in taken)


def steps(run: Path) -> list[Path]:
    """Return the complete checkpoints in a run's directory, oldest first."""
    if not run.is_dir():
        return []
    found = {_order(match): path for path in run.iterdir() if (match := _STEP_NAME.fullmatch(path.name))}
    return [found[order] for order in sorted(found)]


def _order(match: re.Match[str]) -> tuple[int, int]:
    return int(match[1]), int(match[2] or 0)


def outdated(run: Path, saved: Path, keep: int) -> list[Path]:
    """Return the checkpoints to remove after a save: all but the best, the ``keep`` newest up to it, and later ones.

    Later ones belong to a run that was continued from an older checkpoint.
    """
    found, kept = steps(run), best(run)
    position = found.index(saved)
    removed = [*found[: max(0, position + 1 - max(1, keep))], *found[position + 1 :]]
    return [path for path in removed if path != kept]


def newest(path: str | os.PathLike[str]) -> Path | None:
    """Return the checkpoint that a run's ``latest`` names, or the path itself if it is a checkpoint.

    Without a ``latest``, or if it names a missing one, return the newest existing one, or None.
    """
    path = Path(path)
    if (path / METADATA_NAME).is_file():
        return path
    latest = _pointed_to(path / LATEST_NAME)
    if latest is not None:
        return latest
    whole = [found for found in steps(path) if (found / METADATA_NAME).is_file()]
    return whole[-1] if whole else None


def best(run: Path) -> Path | None:
    """Return the checkpoint of a run's best epoch; None if none was chosen, or if it is missing."""
    return _pointed_to(run / BEST_NAME)


def kept(path: str | os.PathLike[str]) -> Path | None:
    """Return the checkpoint that a run's model is taken from: the best, or the newest if none was chosen."""
    return best(Path(path)) or newest(path)


def _pointed_to(pointer: Path) -> Path | None:
    """Return the complete checkpoint that a file names."""
    if not pointer.is_file():
        return None
    with pointer.open("rb") as file:
        name = file.read(100).decode("ascii", "replace").strip()
    found = pointer.parent / name
    is_whole = _STEP_NAME.fullmatch(name) is not None and (found / METADATA_NAME).is_file()
    return found if is_whole else None


def read_record(directory: Path) -> TrainingRecord:
    """Read a checkpoint's ``training.json``.

    Raises:
        CheckpointError: The file is missing or damaged; the message names the field.
    """
    path = directory / TRAINING_NAME
    at = f"checkpoint {directory.name!r}: {TRAINING_NAME}"
    if not path.is_file():
        raise CheckpointError(f"{at}: there is none; it was not written by save_training")
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise CheckpointError(f"got {path.stat().st_size} bytes, expected at most {_MAX_JSON_BYTES}")
        return _record(read_json(path, "training record", CheckpointError))
    except (ArtifactError, CheckpointError) as error:
        raise CheckpointError(f"{at}: {error}") from None


def _record(data: Any) -> TrainingRecord:
    at = "training"
    if json_field(data, "format", at) != FORMAT:
        raise CheckpointError(f"{at}.format: got {str(data['format'])[:80]!r}, expected {FORMAT!r}")
    check_format_version(data, FORMAT_VERSION, at)
    check_plain(data, at)
    return TrainingRecord(
        step=whole(data, "step", at),
        factory=None if json_field(data, "factory", at) is None else text(data, "factory", at),
        arguments=mapping(data, "arguments", at),
        shared=mapping(data, "shared", at),
        ranks=tuple(mapping({"rank": rank}, "rank", to) for to, rank in a_list(data, "ranks", at)),
        plan=mapping(data, "plan", at),
        optimizer=_optimizer(mapping(data, "optimizer", at), f"{at}.optimizer"),
    )


def _optimizer(data: dict[str, Any], at: str) -> dict[str, Any]:
    for key in ("counters", "column_widths", "values"):
        mapping(data, key, at)
    for name, steps in data["counters"].items():
        if type(steps) not in (int, float):
            raise wrong(f"{at}.counters", name, steps, "a number of steps")
    for name in data["column_widths"]:
        shape(data["column_widths"], name, f"{at}.column_widths")
    if json_field(data, "param_groups", at) is not None:
        for to, group in a_list(data, "param_groups", at):
            if not isinstance(group, dict):
                raise CheckpointError(f"{to}: got {type(group).__name__}, expected an object")
    return data


def new_directory(run: Path, record: TrainingRecord) -> Path:
    """Create a directory for a checkpoint being written; remove leftovers of a killed run."""
    run.mkdir(parents=True, exist_ok=True)
    for left in run.glob(".saving-*"):
        shutil.rmtree(left)
    partial = run / f".saving-{secrets.token_hex(4)}"
    partial.mkdir()
    try:
        (partial / TRAINING_NAME).write_text(record.dumps(), encoding="utf-8")
        sync(partial / TRAINING_NAME)
    except BaseException:
        shutil.rmtree(partial)
        raise
    return partial


def publish(run: Path, partial: Path, record: TrainingRecord, keep: int, *, is_best: bool = False) -> Path:
    """Rename a complete checkpoint to its final name in one step, make it the newest, and return it.

    Args:
        run: The run's directory.
        partial: The checkpoint.
        record: Its record.
        keep: Number of newest checkpoints to keep.
        is_best: Whether it becomes the best too.
    """
    sync(partial)
    whole = run / free_name(run, record.step)
    partial.rename(whole)
    sync(run)
    try:
        _point(run / LATEST_NAME, whole.name)
        if is_best:
            choose_best(whole)
    except OSError:
        shutil.rmtree(whole)
        raise
    for old in outdated(run, whole, keep):
        shutil.rmtree(old)
    return whole


def choose_best(checkpoint: Path) -> None:
    """Make a checkpoint the best of its run."""
    _point(checkpoint.parent / BEST_NAME, checkpoint.name)


def _point(pointer_file: Path, name: str) -> None:
    with replacing(pointer_file) as pointer:
        pointer.write_text(f"{name}\n", encoding="ascii")
