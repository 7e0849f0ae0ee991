"""The optimizer in the training lookup: one of FBGEMM's, with its parameters.

Shape letters: D embedding dimension, R rows.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType as EmbOptimType  # re-exported
from torch.optim import Optimizer

import recsys.ops  # noqa: F401  (loads FBGEMM)
from recsys.optim import layerwise, lookup_optimizers
from recsys.optim.rowwise_adagrad import RowWiseAdagrad

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # FBGEMM's, of optimizers that its CPU build lacks
    # Defined here up to FBGEMM 1.6, and importable from here in later versions.
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        WeightDecayMode as WeightDecayMode,  # re-exported
    )

# Optimizer -> its states' names in FBGEMM -> whether they hold one number per row (else one per weight).
_STATES: dict[EmbOptimType, dict[str, bool]] = {
    EmbOptimType.EXACT_SGD: {},
    EmbOptimType.EXACT_ROWWISE_ADAGRAD: {"momentum1": True},
    EmbOptimType.EXACT_ADAGRAD: {"momentum1": False},
    EmbOptimType.ADAM: {"momentum1": False, "momentum2": False},
    EmbOptimType.LAMB: {"momentum1": False, "momentum2": False},
    EmbOptimType.PARTIAL_ROWWISE_ADAM: {"momentum1": False, "momentum2": True},
    EmbOptimType.PARTIAL_ROWWISE_LAMB: {"momentum1": False, "momentum2": True},
    EmbOptimType.LARS_SGD: {"momentum1": False},
}
_DEPRECATED = {
    EmbOptimType.SGD: EmbOptimType.EXACT_SGD,
    EmbOptimType.ROWWISE_ADAGRAD: EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}
_CPU = (EmbOptimType.EXACT_SGD, EmbOptimType.EXACT_ADAGRAD, EmbOptimType.EXACT_ROWWISE_ADAGRAD)
# Arguments of optimizers that choose an implementation, not what is computed; lookups always have norms by row.
_IMPLEMENTATION = ("foreach", "fused", "capturable", "by_row")
_DECAY_MODES = (WeightDecayMode.NONE, WeightDecayMode.L2, WeightDecayMode.DECOUPLE)

_LIKE_ADAM = {"lr": "learning_rate", "eps": "eps", "betas": "betas", "weight_decay": "weight_decay"}
# Optimizer class -> FBGEMM's optimizer, and FBGEMM's names of the class's arguments.
_CLASSES: dict[type[Optimizer], tuple[EmbOptimType, dict[str, str]]] = {
    torch.optim.SGD: (EmbOptimType.EXACT_SGD, {"lr": "learning_rate"}),
    torch.optim.Adagrad: (EmbOptimType.EXACT_ADAGRAD, {"lr": "learning_rate", "eps": "eps"}),
    torch.optim.Adam: (EmbOptimType.ADAM, {"lr": "learning_rate", "eps": "eps", "betas": "betas"}),
    RowWiseAdagrad: (
        EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        {"lr": "learning_rate", "eps": "eps", "weight_decay": "weight_decay"},
    ),
    layerwise.LAMB: (EmbOptimType.LAMB, _LIKE_ADAM),
    layerwise.PartialRowWiseAdam: (EmbOptimType.PARTIAL_ROWWISE_ADAM, _LIKE_ADAM),
    layerwise.PartialRowWiseLAMB: (EmbOptimType.PARTIAL_ROWWISE_LAMB, _LIKE_ADAM),
    layerwise.LarsSGD: (
        EmbOptimType.LARS_SGD,
        {"lr": "learning_rate", "eta": "eta", "momentum": "momentum", "weight_decay": "weight_decay"},
    ),
    lookup_optimizers.SGD: (EmbOptimType.EXACT_SGD, {"lr": "learning_rate"}),
    lookup_optimizers.Adagrad: (EmbOptimType.EXACT_ADAGRAD, {"lr": "learning_rate"}),
    lookup_optimizers.Adam: (EmbOptimType.ADAM, {"lr": "learning_rate", "betas": "betas"}),
}
_NUMBERS = ("learning_rate", "eps", "beta1", "beta2", "weight_decay")


# Optimizer class -> FBGEMM's arguments that it takes for lookups only.
_OWN: dict[type[Optimizer], tuple[str, ...]] = {
    **dict.fromkeys(
        (lookup_optimizers.SGD, lookup_optimizers.Adagrad, lookup_optimizers.Adam),
        (*_NUMBERS, "gradient_clipping", "max_gradient", "stochastic_rounding"),
    ),
    RowWiseAdagrad: (
        "weight_decay_mode",
        "max_norm",
        "gradient_clipping",
        "max_gradient",
        "stochastic_rounding",
    ),
}


@dataclass(frozen=True, kw_only=True)
class FusedConfig:
    """An optimizer that runs inside the backward pass of a lookup. The defaults are FBGEMM 1.8's.

    Only rows that a batch looked up are updated: Adam is "lazy" (the moments of other rows do not decay), and weight
    decay reaches only the rows that were looked up.

    Attributes:
        optimizer: EXACT_SGD, EXACT_ROWWISE_ADAGRAD or EXACT_ADAGRAD; on CUDA also ADAM, LAMB, PARTIAL_ROWWISE_ADAM,
            PARTIAL_ROWWISE_LAMB or LARS_SGD. LAMB's and LARS's norms are those of rows.
        learning_rate: At the start; schedules change it through the fused optimizer's parameter groups.
        eps: Added to the square root; SGD does not read it.
        beta1: Adam's and LAMB's.
        beta2: Adam's and LAMB's.
        eta: How far LARS may change a row's norm in a step.
        momentum: LARS's.
        weight_decay: Adam's (decoupled, as AdamW's), LAMB's and LARS's, or row-wise Adagrad's as
            ``weight_decay_mode`` says. On CUDA only.
        weight_decay_mode: NONE, L2 or DECOUPLE, for row-wise Adagrad.
        max_norm: Row-wise Adagrad keeps the norm of updated rows below it; 0 for no bound. On CUDA only.
        gradient_clipping: Whether each element of a gradient is clipped to ±``max_gradient``.
        max_gradient: The bound of ``gradient_clipping``.
        stochastic_rounding: For FP16 tables, whether updated weights are rounded at random to either neighbour.

    Raises:
        ValueError: An optimizer or value that FBGEMM does not support, or one that this optimizer would
            silently ignore.
    """

    optimizer: EmbOptimType = EmbOptimType.EXACT_SGD
    learning_rate: float = 0.01
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    eta: float = 0.001
    momentum: float = 0.9
    weight_decay: float = 0.0
    weight_decay_mode: WeightDecayMode = WeightDecayMode.NONE
    max_norm: float = 0.0
    gradient_clipping: bool = False
    max_gradient: float = 1.0
    stochastic_rounding: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.optimizer, EmbOptimType) or self.optimizer not in _STATES:
            exact = _DEPRECATED.get(self.optimizer) if isinstance(self.optimizer, EmbOptimType) else None
            raise ValueError(
                f"fused_params['optimizer']: got {self.optimizer!r}, expected one of {_names(_STATES)}"
                + (f"; use {_name(exact)}" if exact else "")
            )
        for name in ("learning_rate", "eps", "eta", "momentum", "weight_decay", "max_norm", "max_gradient"):
            _check_number(name, getattr(self, name), math.inf)
        for name in ("beta1", "beta2"):
            _check_number(name, getattr(self, name), 1.0)
        for name in ("gradient_clipping", "stochastic_rounding"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(
                    f"fused_params[{name!r}]: got {getattr(self, name)!r}, expected True or False"
                )
        self._check_decay()

    def _check_decay(self) -> None:
        """Refuse settings that FBGEMM's optimizer would silently ignore."""
        mode, rowwise = self.weight_decay_mode, self.optimizer == EmbOptimType.EXACT_ROWWISE_ADAGRAD
        if mode not in _DECAY_MODES:
            raise ValueError(
                f"fused_params['weight_decay_mode']: got {mode!r}, expected one of {_names(_DECAY_MODES)}"
            )
        if mode != WeightDecayMode.NONE and not rowwise:
            raise ValueError(
                f"fused_params['weight_decay_mode']: got {mode!r}, but only EXACT_ROWWISE_ADAGRAD has a choice; "
                "leave it out"
            )
        if self.weight_decay and rowwise and mode == WeightDecayMode.NONE:
            raise ValueError(
                f"fused_params['weight_decay']: got {self.weight_decay} without a weight_decay_mode, so it would "
                "have no effect; give WeightDecayMode.L2 or WeightDecayMode.DECOUPLE"
            )
        if self.weight_decay and self.optimizer in (EmbOptimType.EXACT_SGD, EmbOptimType.EXACT_ADAGRAD):
            raise ValueError(
                f"fused_params['weight_decay']: got {self.weight_decay}, but {_name(self.optimizer)} has none; "
                "leave it out or use the dense kernel"
            )
        for name, default in (("eta", 0.001), ("momentum", 0.9)):
            if getattr(self, name) != default and self.optimizer != EmbOptimType.LARS_SGD:
                raise ValueError(
                    f"fused_params[{name!r}]: got {getattr(self, name)}, but only LARS_SGD has it; leave it out"
                )
        if self.max_norm and not rowwise:
            raise ValueError(
                f"fused_params['max_norm']: got {self.max_norm}, but only EXACT_ROWWISE_ADAGRAD has it; leave it out"
            )

    @classmethod
    def from_params(cls, fused_params: Mapping[str, Any] | None) -> FusedConfig:
        """Return a config for the ``fused_params`` of a sharder; SGD with a learning rate of 0.01 for None.

        Raises:
            ValueError: An unknown key or an unsupported value.
        """
        params = dict(fused_params or {})
        allowed = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(str(key) for key in params if key not in allowed)
        if unknown:
            raise ValueError(f"fused_params: got the unknown keys {unknown}, expected some of {allowed}")
        return cls(**params)

    @classmethod
    def from_in_backward(cls, optimizer_class: type[Optimizer], kwargs: Mapping[str, Any]) -> FusedConfig:
        """Return a config for an optimizer class and its arguments, as in ``apply_optimizer_in_backward``.

        Arguments that are left out are FBGEMM's, not the class's, as in TorchRec: a rate of 0.01, an epsilon of 1e-8.
        An L2 penalty is row-wise Adagrad's ``weight_decay`` (TorchRec leaves it out silently).

        Raises:
            ValueError: FBGEMM does not have this optimizer, or does not support the arguments.
        """
        if optimizer_class not in _CLASSES:
            raise ValueError(
                f"optimizer_class: got {optimizer_class.__qualname__}, which no lookup can run in its backward pass; "
                f"expected one of {sorted({known.__qualname__ for known in _CLASSES})}, or use the dense kernel"
            )
        optimizer, names = _CLASSES[optimizer_class]
        parameters = inspect.signature(optimizer_class).parameters
        defaults = {name: p.default for name, p in parameters.items() if name != "params"}
        defaults.pop("kwargs", None)
        own = {name: kwargs[name] for name in _OWN.get(optimizer_class, ()) if name in kwargs}
        for name, value in kwargs.items():
            if name in own:
                continue
            if name not in (*defaults, *names):
                raise ValueError(
                    f"optimizer_kwargs[{name!r}]: {optimizer_class.__qualname__} has no such argument"
                )
            if name not in (*names, *_IMPLEMENTATION) and value != defaults[name]:
                raise ValueError(
                    f"optimizer_kwargs[{name!r}]: got {value!r}, but FBGEMM's {_name(optimizer)} has no such setting; "
                    f"leave it at {defaults[name]!r}, or use the dense kernel"
                )
        values = {theirs: kwargs[ours] for ours, theirs in names.items() if ours in kwargs} | own
        if "betas" in values:
            values["beta1"], values["beta2"] = values.pop("betas")
        if values.get("weight_decay") and optimizer == EmbOptimType.EXACT_ROWWISE_ADAGRAD:
            values.setdefault("weight_decay_mode", WeightDecayMode.L2)
        return cls(optimizer=optimizer, **values)

    def check_device(self, device: torch.device) -> None:
        """Refuse what FBGEMM's CPU lookups lack: some optimizers, and some settings that they silently ignore.

        Raises:
            ValueError: The optimizer or a setting does not exist on the device.
        """
        if device.type != "cpu":
            return
        if self.optimizer not in _CPU:
            raise ValueError(
                f"fused_params['optimizer']: {_name(self.optimizer)} exists on CUDA only, and the device is {device}; "
                f"on a CPU use one of {_names(_CPU)} or the dense kernel"
            )
        for name in ("weight_decay", "max_norm"):
            if getattr(self, name):
                raise ValueError(
                    f"fused_params[{name!r}]: got {getattr(self, name)}, but FBGEMM ignores it on {device}; "
                    "leave it out, use the dense kernel or a CUDA device"
                )

    def tbe_arguments(self) -> dict[str, Any]:
        """Return the arguments of ``SplitTableBatchedEmbeddingBagsCodegen``."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def state_names(self) -> tuple[str, ...]:
        """Return FBGEMM's names of the optimizer's states, in the order of ``split_optimizer_states()``."""
        return tuple(_STATES[self.optimizer])

    def state_shape(self, name: str, num_rows: int, num_columns: int) -> tuple[int, ...]:
        """Return ``(R,)`` for a state of one number per row, ``(R, D)`` for one number per weight; all are float32."""
        return (num_rows,) if self.is_row_wise(name) else (num_rows, num_columns)

    def is_row_wise(self, name: str) -> bool:
        """Return whether the state holds one number per row."""
        return _STATES[self.optimizer][name]

    def has_step_count(self) -> bool:
        """Return whether updates depend on the number of steps taken: the bias correction of Adam and LAMB does."""
        return "momentum2" in _STATES[self.optimizer]


def _check_number(name: str, value: object, below: float) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value < below
    if not good:
        expected = "a finite number of at least 0" if below == math.inf else f"a number in [0, {below:g})"
        raise ValueError(f"fused_params[{name!r}]: got {value!r}, expected {expected}")


def _name(value: Any) -> str:
    return f"{type(value).__name__}.{value.name}"


def _names(values: Any) -> str:
    return ", ".join(_name(value) for value in values)
