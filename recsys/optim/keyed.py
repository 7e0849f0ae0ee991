"""Optimizers with state by parameter name, which is independent of processes and plans."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from recsys.errors import CheckpointError
from recsys.optim.state import check_names, check_state, copy_state

# Sharded parameters are ``torch.distributed._shard.sharded_tensor.ShardedTensor``, a subclass of Tensor.
OptimizerFactory = Callable[[list[Tensor]], Optimizer]


class KeyedOptimizer(Optimizer):
    """State by parameter name: ``state_dict()["state"][parameter name][state name]``.

    It is stricter than ``torch.optim.Optimizer``: loading copies into the existing state, in place, and a
    checkpoint with a missing or an additional parameter is an error. ``init_state()`` creates lazily created
    state.

    Args:
        params: Name -> parameter.
        state: Parameter -> state name -> value. Kept, not copied.
        param_groups: Groups as in ``torch.optim``; learning-rate schedules change them. Kept, not copied.

    Raises:
        ValueError: State or groups refer to parameters not in ``params``, or a parameter has two names.
    """

    _params: Mapping[str, Tensor]

    def __init__(
        self,
        params: Mapping[str, Tensor],
        state: Mapping[Tensor, Any],
        param_groups: Collection[Mapping[str, Any]],
    ) -> None:
        check_params(params)
        known = set(params.values())
        num_foreign = sum(param not in known for param in state)
        if num_foreign:
            raise ValueError(f"state: {num_foreign} of its keys are no tensors of params {list(params)}")
        for i, group in enumerate(param_groups):
            num_foreign = sum(param not in known for param in group["params"])
            if num_foreign:
                raise ValueError(
                    f"param_groups[{i}]['params']: {num_foreign} of them are no tensors of params {list(params)}"
                )
        self._start({"_params": params, "state": state, "param_groups": param_groups})

    def _start(self, attributes: dict[str, Any]) -> None:
        """Set up hooks and profiling as for an unpickled optimizer, without checking the parameters.

        ``Optimizer.__init__`` rejects empty parameters and the groups of another optimizer.
        """
        self.__setstate__({"defaults": {}, "_saves_param_groups": False, **attributes})

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "step"}  # schedulers replace it

    @property
    def params(self) -> Mapping[str, Tensor]:
        """Name -> parameter."""
        return self._params

    def save_param_groups(self, save: bool) -> None:
        """Set whether state dicts hold the parameter groups. By default they do not: each run sets its own."""
        self._saves_param_groups = save

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"state": {parameter name: {state name: value}}}``, with ``"param_groups"`` if they are saved.

        Tensors are those of the optimizer, not copies.
        """
        names = {param: name for name, param in self.params.items()}
        saved: dict[str, Any] = {
            "state": {names[param]: _plain(state) for param, state in self.state.items()}
        }
        if self._saves_param_groups:
            saved["param_groups"] = [
                {"params": sorted(names[param] for param in group["params"])}
                | {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
                for group in self.param_groups
            ]
        return saved

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Copy a saved state into this one, in place. If anything does not fit, nothing is changed.

        A sharded tensor accepts one with the same shards, or a full tensor, from which it copies its part.

        Raises:
            CheckpointError: A state is wrong; the message names the parameter, the state and what was expected.
        """
        if "state" not in state_dict:
            raise CheckpointError(
                f"state_dict: got the keys {sorted(state_dict)}, expected 'state' among them"
            )
        state = self.state
        current = {name: state[param] for name, param in self.params.items() if state.get(param)}
        new = {n: saved for n, saved in state_dict["state"].items() if not isinstance(saved, dict) or saved}
        if new and not current:
            raise CheckpointError(
                f"state: the checkpoint has state for {sorted(new)}, this optimizer has none yet; "
                "call init_state() before loading"
            )
        check_state("state", current, new)
        pairs = self._group_pairs(state_dict) if self._saves_param_groups else []
        copy_state(current, new)
        for group, new_group in pairs:
            group.update({name: copy.deepcopy(v) for name, v in new_group.items() if name != "params"})
        self.post_load_state_dict()

    def _group_pairs(self, state_dict: Mapping[str, Any]) -> list[tuple[dict[str, Any], Mapping[str, Any]]]:
        """Return each group and the saved one of the same parameters."""
        if "param_groups" not in state_dict:
            raise CheckpointError(
                "param_groups: the checkpoint has none; call save_param_groups(True) before saving, or "
                "save_param_groups(False) before loading"
            )
        names = {param: name for name, param in self.params.items()}
        groups = _by_params(self.param_groups, [[names[p] for p in g["params"]] for g in self.param_groups])
        saved = _by_params(state_dict["param_groups"], [g["params"] for g in state_dict["param_groups"]])
        check_names("param_groups", saved, groups)
        for name, group in groups.items():
            missing = sorted(key for key in group if key not in saved[name])
            if missing:
                raise CheckpointError(f"param_groups[{name!r}]: the checkpoint lacks {missing}")
        return [(group, saved[name]) for name, group in groups.items()]

    def post_load_state_dict(self) -> None:
        """Run after a state was loaded; for subclasses that keep other data."""

    def init_state(self, sparse_grad_parameter_names: Collection[str] | None = None) -> None:
        """Create the state that the first step would create, so that a checkpoint can be loaded into it.

        This takes a step with zero gradients, learning rate and weight decay: parameters, gradients and
        existing state keep their values, and counters named ``step`` are reset to 0.

        Args:
            sparse_grad_parameter_names: Parameters whose gradients are sparse.
        """
        lacking = {n: p for n, p in self.params.items() if p.requires_grad and not self.state.get(p)}
        if not lacking:
            return
        gradients = [(param, param.grad) for param in self.params.values()]
        numbers: list[dict[str, Any]] = [
            {name: group[name] for name in ("lr", "weight_decay") if name in group}
            for group in self.param_groups
        ]
        for param in self.params.values():
            param.grad = None
        for name, param in lacking.items():
            param.grad = _zero_gradient(param, sparse=name in (sparse_grad_parameter_names or ()))
        try:
            for group, values in zip(self.param_groups, numbers, strict=True):
                group.update(dict.fromkeys(values, 0.0))
            # Named, as everywhere here: subclasses written for TorchRec take it without a default.
            self.step(closure=None)
        finally:
            for group, values in zip(self.param_groups, numbers, strict=True):
                group.update(values)
            for param, gradient in gradients:
                param.grad = gradient
        for param in lacking.values():
            step = self.state[param].get("step") if param in self.state else None
            if step is not None:
                self.state[param]["step"] = torch.zeros_like(step) if isinstance(step, Tensor) else 0

    def set_optimizer_step(self, step: int) -> None:
        """Set the step count of optimizers that count steps (fused ones)."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: parameters are given by name, at construction."""
        raise NotImplementedError(
            "add_param_group: make a KeyedOptimizer of the new parameters and combine the two"
        )


class KeyedOptimizerWrapper(KeyedOptimizer):
    """A ``torch.optim`` optimizer with state by name.

    Args:
        params: Name -> parameter, as ``dict(model.named_parameters())`` has them.
        optim_factory: Creates the optimizer of the parameters: ``lambda params: torch.optim.SGD(params,
            lr=0.1)``.
        pass_params_dict: Whether ``optim_factory`` gets ``params`` instead of the list of parameters.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        optim_factory: Callable[[Any], Optimizer],
        pass_params_dict: bool = False,
    ) -> None:
        check_params(params)
        self._optimizer = optim_factory(params if pass_params_dict else list(params.values()))
        super().__init__(params, self._optimizer.state, self._optimizer.param_groups)

    def __repr__(self) -> str:
        return repr(self._optimizer)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Delegate to the wrapped optimizer."""
        self._optimizer.zero_grad(set_to_none=set_to_none)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Delegate to the wrapped optimizer."""
        return step_part(self._optimizer, closure)


# torch puts it around the ``step`` of each class of optimizers.
_WRAPPER = Optimizer.profile_hook_step(lambda: None).__code__


def step_part(optimizer: Optimizer, closure: Callable[[], float] | None = None) -> float | None:
    """Step an optimizer that is a part of another one, without torch's wrapper of each step if it has nothing to do.

    The wrapper names the step in profiles and calls hooks; a learning-rate scheduler of the part replaces its ``step``.
    """
    step: Any = type(optimizer).step
    if (
        getattr(step, "__code__", None) is not _WRAPPER
        or "step" in vars(optimizer)
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
        or torch.autograd._profiler_enabled()
    ):
        return optimizer.step(closure=closure)
    loss: float | None = step.__wrapped__(optimizer, closure=closure)
    return loss


def check_params(params: Mapping[str, Tensor]) -> None:
    """Check that each tensor has one name.

    Raises:
        ValueError: Names the two.
    """
    names: dict[Tensor, str] = {}
    for name, param in params.items():
        if param in names:
            raise ValueError(
                f"params: {names[param]!r} and {name!r} are one tensor, expected each tensor once"
            )
        names[param] = name


def _by_params(groups: Sequence[Any], params: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return groups by their sorted parameter names; equal names are numbered."""
    found: dict[str, Any] = {}
    for group, names in zip(groups, params, strict=True):
        key = "/".join(sorted(names))
        num_equal = sum(known.partition("#")[0] == key for known in found)
        found[f"{key}#{num_equal}" if num_equal else key] = group
    return found


def _plain(value: Any) -> Any:
    """Return nested dicts with values replaced by their state dicts, if they have one."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return value.state_dict() if hasattr(value, "state_dict") else value


def _zero_gradient(param: Tensor, *, sparse: bool) -> Tensor:
    if not sparse:
        return torch.zeros_like(param)
    rows = torch.empty(1, 0, dtype=torch.int64, device=param.device)
    values = torch.empty(0, *param.shape[1:], dtype=param.dtype, device=param.device)
    return torch.sparse_coo_tensor(rows, values, param.shape, check_invariants=True)
