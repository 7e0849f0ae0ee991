"""How far a training has come, as checkpoints hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from recsys.checked import a_list, json_field, whole
from recsys.errors import CheckpointError, ManifestError
from recsys.train.metrics import Metrics
from recsys.train.watch import Epoch


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a training stands between two steps; the next step follows from it alone.

    Attributes:
        epochs: passes that are done.
        step_in_epoch: steps done of the pass after them.
        step: steps done since the training began.
        num_rows: training rows of the pass's steps, on all ranks.
        loss: sum of their losses.
    """

    epochs: tuple[Epoch, ...] = ()
    step_in_epoch: int = 0
    step: int = 0
    num_rows: int = 0
    loss: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data that ``from_json`` reads back."""
        return {**asdict(self), "epochs": [asdict(epoch) for epoch in self.epochs]}

    @classmethod
    def from_json(cls, data: Any) -> Progress:
        """Read what ``to_json`` wrote; trusts nothing.

        Raises:
            CheckpointError: names the field.
        """
        try:
            return cls(
                epochs=tuple(_epoch(item, at) for at, item in a_list(data, "epochs", "progress")),
                step_in_epoch=whole(data, "step_in_epoch", "progress"),
                step=whole(data, "step", "progress"),
                num_rows=whole(data, "num_rows", "progress"),
                loss=_number(data, "loss", "progress"),
            )
        except ManifestError as error:
            raise CheckpointError(str(error)) from None


def _epoch(data: Any, at: str) -> Epoch:
    held_out = json_field(data, "held_out", at)
    to = f"{at}.held_out"
    return Epoch(
        number=whole(data, "number", at, least=1),
        step=whole(data, "step", at),
        train_loss=_number(data, "train_loss", at),
        examples_per_second=_number(data, "examples_per_second", at),
        held_out=Metrics(
            num_rows=whole(held_out, "num_rows", to, least=1),
            loss=_number(held_out, "loss", to),
            auc=_number_or_none(held_out, "auc", to),
            ne=_number_or_none(held_out, "ne", to),
            calibration=_number_or_none(held_out, "calibration", to),
        ),
    )


def _number(data: Mapping[str, Any], key: str, at: str) -> float:
    value = json_field(data, key, at)
    if type(value) not in (int, float):
        raise ManifestError(f"{at}.{key}: got {str(value)[:80]!r}, expected a number")
    return float(value)


def _number_or_none(data: Mapping[str, Any], key: str, at: str) -> float | None:
    return None if json_field(data, key, at) is None else _number(data, key, at)
