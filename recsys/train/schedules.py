"""How learning rates change over a training, how gradients are clipped and accumulated, and their precision."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

SCHEDULES = ("constant", "cosine", "step")
#: Types of the dense layers' numbers where a GPU trains.
MIXED_PRECISIONS = ("none", "bfloat16")
#: The defaults of ``decay_factor``.
_DECAY_FACTORS = {"cosine": 0.0, "step": 0.1}


def steps_per_epoch(num_rows: int, global_batch_size: int) -> int:
    """Return about how many steps an epoch has: a block of the data ends with a smaller batch."""
    return max(1, math.ceil(num_rows / global_batch_size))


@dataclass(frozen=True, kw_only=True)
class Schedules:
    """The part of a ``TrainConfig`` that says how each step learns.

    Steps are batches of all ranks, counted from 0 at the beginning of the training.

    Attributes:
        schedule: How the rates change after the warm-up: one of ``SCHEDULES``.
        row_schedule: The same for the tables; None for ``schedule``.
        warmup_steps: Steps in which the rates rise in equal parts to their values.
        row_warmup_steps: The same for the tables; None for ``warmup_steps``.
        decay_steps: cosine: the step at which the rates have fallen to the lowest; None for the last one of all epochs.
            step: steps between two falls; None for those of an epoch.
        decay_factor: cosine: the lowest rate; step: the rate after a fall; both as a share of the rate before. None for
            0 and 0.1.
        clip_norm: The largest norm of the dense layers' gradients together; None for any.
        row_clip_value: The largest absolute value of a number in the gradient of a looked-up vector; None for any.
        accumulate: Batches whose mean gradient makes one step of the dense layers. Tables learn from each batch, from
            the same gradients.
        mixed_precision: The type of the dense layers' activations and gradients, one of ``MIXED_PRECISIONS``; weights
            stay float32. On a GPU only.
    """

    schedule: str = "constant"
    row_schedule: str | None = None
    warmup_steps: int = 0
    row_warmup_steps: int | None = None
    decay_steps: int | None = None
    decay_factor: float | None = None
    clip_norm: float | None = None
    row_clip_value: float | None = None
    accumulate: int = 1
    mixed_precision: str = "none"

    def _check_schedules(self) -> None:
        for name in ("schedule", "row_schedule"):
            got = getattr(self, name)
            if got not in SCHEDULES and (name, got) != ("row_schedule", None):
                raise ValueError(f"{name}: got {got!r}, expected one of {', '.join(SCHEDULES)}")
        if self.mixed_precision not in MIXED_PRECISIONS:
            raise ValueError(
                f"mixed_precision: got {self.mixed_precision!r}, expected one of {', '.join(MIXED_PRECISIONS)}"
            )
        for name, least in (
            ("warmup_steps", 0),
            ("row_warmup_steps", 0),
            ("decay_steps", 1),
            ("accumulate", 1),
        ):
            number = getattr(self, name)
            if number is not None and number < least:
                raise ValueError(f"{name}: got {number}, expected at least {least}")
        for name in ("clip_norm", "row_clip_value"):
            bound = getattr(self, name)
            if bound is not None and not 0 < bound < math.inf:
                raise ValueError(f"{name}: got {bound}, expected a number above 0")
        kinds = {self.schedule, self.row_schedule or self.schedule}
        for name in ("decay_steps", "decay_factor"):
            if getattr(self, name) is not None and kinds == {"constant"}:
                raise ValueError(
                    f"{name}: got {getattr(self, name)} with constant rates, expected a schedule"
                )
        if self.decay_factor is not None and not 0 <= self.decay_factor <= 1:
            raise ValueError(f"decay_factor: got {self.decay_factor}, expected a share of 0 to 1")
        if self.decay_factor == 0 and "step" in kinds:
            raise ValueError("decay_factor: got 0 with the schedule step, expected a share above 0")

    def check_device(self, device_type: str) -> None:
        """Check that a device has the precision.

        Raises:
            ValueError: It has not.
        """
        if self.mixed_precision != "none" and device_type == "cpu":
            raise ValueError(
                f"mixed_precision: got {self.mixed_precision!r} on cpu, expected none, or a GPU (--device cuda): "
                "processors gain from --matmul-precision bfloat16 alone"
            )

    @property
    def has_schedules(self) -> bool:
        """Whether a rate changes."""
        rates = (self.schedule, self.row_schedule or self.schedule)
        return rates != ("constant", "constant") or bool(self.warmup_steps or self.row_warmup_steps)

    def decays_until(self, epochs: int, steps_per_epoch: int) -> int | None:
        """Return ``decay_steps``, or its default where a rate decays and it is None."""
        kinds = {self.schedule, self.row_schedule or self.schedule}
        if self.decay_steps is not None or kinds == {"constant"}:
            return self.decay_steps
        return steps_per_epoch * epochs if "cosine" in kinds else steps_per_epoch

    def rates(self, first_step: int, epochs: int, steps_per_epoch: int) -> Iterator[tuple[float, float]]:
        """Yield for each step the factors of the dense layers' and of the tables' learning rate.

        Args:
            first_step: The first step.
            epochs: Epochs of the training.
            steps_per_epoch: Steps of an epoch; a few more than that keep the last factor.
        """
        row_schedule = self.row_schedule or self.schedule
        row_warmup = self.warmup_steps if self.row_warmup_steps is None else self.row_warmup_steps
        for step in count(first_step):
            yield (
                self._factor(self.schedule, self.warmup_steps, step, epochs, steps_per_epoch),
                self._factor(row_schedule, row_warmup, step, epochs, steps_per_epoch),
            )

    def _factor(self, schedule: str, warmup: int, step: int, epochs: int, steps_per_epoch: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if schedule == "constant":
            return 1.0
        factor = _DECAY_FACTORS[schedule] if self.decay_factor is None else self.decay_factor
        if schedule == "step":
            return float(factor ** ((step - warmup) // (self.decay_steps or steps_per_epoch)))
        whole = max((self.decay_steps or steps_per_epoch * epochs) - warmup, 1)
        # Never the end itself, where a rate may be 0.
        done = min(step - warmup, whole - 1) / whole
        return factor + (1 - factor) * 0.5 * (1 + math.cos(math.pi * done))
