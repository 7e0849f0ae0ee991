"""Learning rates that follow a schedule of stages, by TorchRec's names."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, unique
from typing import Any

import torch
from torch import Tensor, nn

from recsys.optim.combined import OptimizerWrapper
from recsys.optim.keyed import KeyedOptimizer

_FOREVER = 1 << 63


@unique
class WarmupPolicy(Enum):
    """How the rate changes in a stage."""

    NONE = "none"
    LINEAR = "linear"
    CONSTANT = "constant"
    POLY = "poly"
    STEP = "step"
    INVSQRT = "inv_sqrt"
    COSINE_ANNEALING_WARM_RESTARTS = "cosine_annealing_warm_restarts"
    INTERPOLATE = "interpolate"


@dataclass
class WarmupStage:
    """A part of a schedule; its multiplier of the rate in step t (counted from the start of the training).

    * NONE: 1; CONSTANT: ``value``
    * LINEAR: from ``value`` at 0 to 1 at ``max_iters``
    * POLY: ``(1 - t / decay_iters) ** value``
    * STEP: ``value ** (t // decay_iters)``
    * INVSQRT: ``1 / sqrt(t)``
    * COSINE_ANNEALING_WARM_RESTARTS: from 1 to ``value`` along a cosine, every ``sgdr_period`` steps again
    * INTERPOLATE: from ``value`` at ``start_interpolating_iters`` to ``end_value`` at ``max_iters``

    Attributes:
        policy: How the rate changes.
        max_iters: The last step of the stage, counted from the start of the training.
        value: As above.
        lr_scale: A further factor.
        decay_iters: As above; below 1, ``max_iters`` (STEP: 1).
        sgdr_period: As above.
        start_interpolating_iters: As above.
        end_value: As above.
    """

    policy: WarmupPolicy = WarmupPolicy.LINEAR
    max_iters: int = 1
    value: float = 1.0
    lr_scale: float = 1.0
    decay_iters: int = -1
    sgdr_period: int = 1
    start_interpolating_iters: int | None = None
    end_value: float | None = None

    def multiplier(self, step: int) -> float:
        """Return the factor of the rate in a step."""
        return self._of_policy(step) * self.lr_scale

    def _of_policy(self, step: int) -> float:
        match self.policy:
            case WarmupPolicy.LINEAR:
                return self.value + (1.0 - self.value) * step / self.max_iters
            case WarmupPolicy.CONSTANT:
                return self.value
            case WarmupPolicy.POLY:
                return math.pow(1 - step / self.decay_iters, self.value)
            case WarmupPolicy.STEP:
                return math.pow(self.value, step // self.decay_iters)
            case WarmupPolicy.INVSQRT:
                return 1.0 / math.sqrt(step)
            case WarmupPolicy.COSINE_ANNEALING_WARM_RESTARTS:
                turn = math.pi * (step % self.sgdr_period) / self.sgdr_period
                return self.value + (1.0 - self.value) * 0.5 * (1 + math.cos(turn))
            case WarmupPolicy.INTERPOLATE:
                assert self.start_interpolating_iters is not None
                assert self.end_value is not None
                done = step - self.start_interpolating_iters
                whole = self.max_iters - self.start_interpolating_iters
                return self.value + (self.end_value - self.value) * done / whole
        return 1.0


class WarmupOptimizer(OptimizerWrapper):
    """Sets the rate of each step. Its place in the schedule is in state dicts, as a parameter's state.

    Args:
        optimizer: The optimizer to wrap.
        stages: The stages, in order; after the last one, the rate is ``lr``.
        lr: The rate that multipliers change.
        lr_param: The name of the rate in parameter groups.
        param_name: The name of the place in the schedule in state dicts.

    Raises:
        ValueError: A stage does not end after the one before it, or lacks what its policy needs.
    """

    def __init__(
        self,
        optimizer: KeyedOptimizer,
        stages: Sequence[WarmupStage],
        lr: float = 0.1,
        lr_param: str = "lr",
        param_name: str = "__warmup",
    ) -> None:
        super().__init__(optimizer)
        self._stages = _checked(stages)
        self._lr = lr
        self._lr_param = lr_param
        self._param_name = param_name
        self._place = nn.Parameter(torch.empty(0))
        self._place_state: dict[str, Tensor] = {}
        # Fused optimizers update tables before the first call of step().
        self._set_lr(0, 0)

    @property
    def params(self) -> Mapping[str, Tensor]:
        """Name -> parameter, of the wrapped optimizer, and the place in the schedule."""
        return {**self._optimizer.params, self._param_name: self._place}

    @property
    def state(self) -> Mapping[Tensor, Any]:  # type: ignore[override]
        """Parameter -> state, of the wrapped optimizer, and ``warmup``: the step and the stage."""
        mine: dict[Tensor, Any] = {self._place: self._place_state} if self._place_state else {}
        return {**self._optimizer.state, **mine}

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state dict, with the place in the schedule."""
        saved = self._optimizer.state_dict()
        if self._place_state:
            saved["state"] = {**saved["state"], self._param_name: dict(self._place_state)}
        return saved

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the wrapped optimizer's state, and go on from the place in the schedule."""
        states = dict(state_dict.get("state", {}))
        place = states.pop(self._param_name, None)
        self._optimizer.load_state_dict(
            {**state_dict, "state": states} if "state" in state_dict else state_dict
        )
        if place is not None:
            self._place_state = {"warmup": torch.as_tensor(place["warmup"]).clone()}
        self.post_load_state_dict()

    def init_state(self, sparse_grad_parameter_names: Collection[str] | None = None) -> None:
        """Create the wrapped optimizer's state, and the place in the schedule."""
        self._optimizer.init_state(sparse_grad_parameter_names)
        if not self._place_state:
            self._place_state = {"warmup": torch.tensor([0, 0])}

    def post_load_state_dict(self) -> None:
        """Set the rate of the place in the schedule."""
        self._set_lr(*self._where())

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step, then set the rate of the next step.

        Args:
            closure: Passed on.
        """
        loss = self._step_wrapped(closure)
        step, stage = self._where()
        step += 1
        if step > self._stages[stage].max_iters and stage + 1 < len(self._stages):
            stage += 1
        self._set_lr(step, stage)
        self._place_state = {"warmup": torch.tensor([step, stage])}
        return loss

    def _where(self) -> tuple[int, int]:
        if not self._place_state:
            return 0, 0
        step, stage = self._place_state["warmup"].tolist()
        return step, stage

    def _set_lr(self, step: int, stage: int) -> None:
        for group in self.param_groups:
            group[self._lr_param] = self._lr * self._stages[stage].multiplier(step)


def _checked(stages: Sequence[WarmupStage]) -> list[WarmupStage]:
    """Return the stages with their defaults, and one that never ends."""
    found, start = [], 0
    for i, stage in enumerate(stages):
        if stage.max_iters <= start:
            raise ValueError(f"stages[{i}].max_iters: got {stage.max_iters}, expected above {start}")
        if stage.policy is WarmupPolicy.INTERPOLATE:
            first = stage.start_interpolating_iters
            if first is None or stage.end_value is None or stage.max_iters <= first:
                raise ValueError(
                    f"stages[{i}]: got start_interpolating_iters {first} and end_value {stage.end_value} with "
                    f"INTERPOLATE, expected both, and a start below max_iters ({stage.max_iters})"
                )
        start = stage.max_iters
        if stage.decay_iters <= 0:
            stage = replace(stage, decay_iters=1 if stage.policy is WarmupPolicy.STEP else stage.max_iters)
        found.append(stage)
    return [*found, WarmupStage(WarmupPolicy.NONE, _FOREVER)]
