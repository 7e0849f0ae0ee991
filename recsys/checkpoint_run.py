"""The directory of a training run: which checkpoint is the newest, and what is in it beside tensors.

    run/latest              the name of the newest whole checkpoint, replaced in one step
    run/step-00000100/      .metadata, *.distcp: torch.distributed.checkpoint; training.json: this file's subject

Everything here is plain data of a file that nobody vouches for: it is checked as it is read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recsys.checked import a_list, json_field, text, whole
from recsys.checkpoint import check_plain
from recsys.checkpoint_metadata import METADATA_NAME
from recsys.errors import CheckpointError, ManifestError

LATEST_NAME = "latest"
TRAINING_NAME = "training.json"
FORMAT = "recsys-training"
FORMAT_VERSION = 1
#: In front of the names of the model's tensors, and of its optimizers', in ``.metadata``.
MODEL_PREFIX = "model."
OPTIMIZER_PREFIX = "optimizer."
_STEP_NAME = re.compile(r"step-(\d{8,18})", re.ASCII)
# Far more than RNG states and positions of thousands of ranks take.
_MAX_JSON_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """What ``training.json`` holds.

    Attributes:
        step: optimizer steps taken.
        factory: of the model; None where it was not named.
        arguments: the factory's.
        shared: the run's progress.
        ranks: for each rank of the saved run ``{"local": its own progress, "rng": its random number generators}``.
        plan: the sharding plan, as ``ShardingPlan.to_json`` gives it.
        optimizer: what is no tensor of the optimizer's state, and how its tensors are laid out.
    """

    step: int
    factory: str | None
    arguments: Mapping[str, Any]
    shared: Mapping[str, Any]
    ranks: tuple[Mapping[str, Any], ...]
    plan: Mapping[str, Any]
    optimizer: Mapping[str, Any]

    def dumps(self) -> str:
        """The file's text.

        Raises:
            CheckpointError: something is no plain data.
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


def step_name(step: int) -> str:
    """The name of a step's checkpoint in its run."""
    return f"step-{step:08d}"


def steps(run: Path) -> list[Path]:
    """The checkpoints in a run's directory, oldest first."""
    if not run.is_dir():
        return []
    found = {int(match[1]): path for path in run.iterdir() if (match := _STEP_NAME.fullmatch(path.name))}
    return [found[step] for step in sorted(found)]


def newest(path: str | os.PathLike[str]) -> Path | None:
    """The newest whole checkpoint of a run, or the path itself where it is one; None where there is none.

    Raises:
        CheckpointError: ``latest`` names what is no checkpoint of the run.
    """
    path = Path(path)
    if (path / METADATA_NAME).is_file():
        return path
    latest = path / LATEST_NAME
    if not latest.is_file():
        return None
    with latest.open("rb") as file:
        name = file.read(100).decode("ascii", "replace").strip()
    if _STEP_NAME.fullmatch(name) is None:
        raise CheckpointError(
            f"run {path.name!r}: {LATEST_NAME}: got {name[:40]!r}, expected a name like step-00000100"
        )
    if not (path / name / METADATA_NAME).is_file():
        raise CheckpointError(
            f"run {path.name!r}: {LATEST_NAME} names {name!r}, which is no whole checkpoint; "
            f"the run has {[p.name for p in steps(path)][-5:]}"
        )
    return path / name


def read_record(directory: Path) -> TrainingRecord:
    """Read a checkpoint's ``training.json``.

    Raises:
        CheckpointError: it is missing or damaged; names the field.
    """
    path = directory / TRAINING_NAME
    at = f"checkpoint {directory.name!r}: {TRAINING_NAME}"
    if not path.is_file():
        raise CheckpointError(f"{at}: there is none; it was not written by save_training")
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise CheckpointError(f"got {path.stat().st_size} bytes, expected at most {_MAX_JSON_BYTES}")
        data = json.loads(path.read_text(encoding="utf-8"))
        return _record(data)
    except (ManifestError, CheckpointError) as error:
        raise CheckpointError(f"{at}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{at}: not readable as JSON: {error}") from None


def _record(data: Any) -> TrainingRecord:
    at = "training"
    if json_field(data, "format", at) != FORMAT:
        raise CheckpointError(f"{at}.format: got {str(data['format'])[:80]!r}, expected {FORMAT!r}")
    version = whole(data, "format_version", at, least=1)
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"{at}.format_version: got {version}, expected at most {FORMAT_VERSION}: written by a newer release; "
            "install that one"
        )
    check_plain(data, at)
    return TrainingRecord(
        step=whole(data, "step", at),
        factory=None if json_field(data, "factory", at) is None else text(data, "factory", at),
        arguments=_object(data, "arguments", at),
        shared=_object(data, "shared", at),
        ranks=tuple(_object({"rank": rank}, "rank", to) for to, rank in a_list(data, "ranks", at)),
        plan=_object(data, "plan", at),
        optimizer=_object(data, "optimizer", at),
    )


def _object(data: Any, key: str, at: str) -> dict[str, Any]:
    value = json_field(data, key, at)
    if not isinstance(value, dict):
        raise CheckpointError(f"{at}.{key}: got {type(value).__name__}, expected an object")
    return value
