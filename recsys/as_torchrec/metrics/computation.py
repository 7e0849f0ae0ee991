"""The state of one metric: sums over its lifetime and over a window, reduced over all ranks when it is computed.

Shape letters: N number of examples, T number of tasks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from recsys.as_torchrec.metrics.config import RecComputeMode
from recsys.as_torchrec.metrics.names import MetricNameBase, MetricPrefix
from recsys.base.collectives import gather_rows

MAX_BUFFER_COUNT = 1000
State = Tensor | list[Tensor]
Reduction = str | Callable[[Any], Any]


class RecMetricException(Exception):
    """A metric got what it cannot be computed from."""


@dataclass(frozen=True)
class MetricComputationReport:
    """One number of a metric for each task, ``[T]``."""

    name: MetricNameBase
    metric_prefix: MetricPrefix
    value: Tensor
    description: str | None = None


class WindowBuffer:
    """The latest batches' parts of a sum, so that they can be taken from it when they leave the window.

    Args:
        max_size: Most examples in the window.
        max_buffer_count: Most batches in it.
    """

    def __init__(self, max_size: int, max_buffer_count: int) -> None:
        self._max_size, self._max_buffer_count = max_size, max_buffer_count
        self._buffers: deque[Tensor] = deque()
        self._sizes: deque[int] = deque()
        self._size = 0

    def aggregate_state(self, window_state: Tensor, curr_state: Tensor, size: int) -> None:
        """Add a batch's part of ``size`` examples to the sum, and take from it what leaves the window."""
        if len(self._buffers) == self._max_buffer_count:
            self._remove(window_state)
        self._buffers.append(curr_state.clone())
        self._sizes.append(size)
        self._size += size
        window_state += curr_state
        while self._size > self._max_size:
            self._remove(window_state)

    def _remove(self, window_state: Tensor) -> None:
        window_state -= self._buffers.popleft()
        self._size -= self._sizes.popleft()

    @property
    def buffers(self) -> deque[Tensor]:
        """The parts, the oldest first."""
        return self._buffers


class RecMetricComputation(nn.Module, ABC):
    """A metric's arithmetic. A metric of your own has ``update`` and ``_compute``, and adds states with ``_add_state``.

    Args:
        my_rank: This rank; the first one gets the numbers.
        batch_size: Examples of a batch.
        n_tasks: T.
        window_size: Examples of this rank in the window.
        compute_on_all_ranks: Whether every rank gets them.
        should_validate_update: Whether batches without weight are left out.
        compute_mode: How the metric computes its tasks.
        process_group: The ranks; None for all.
        fused_update_limit: Batches of an update.
        allow_missing_label_with_zero_weight: Whether a metric without examples has a value.
    """

    def __init__(  # noqa: PLR0913 (TorchRec's signature)
        self,
        my_rank: int,
        batch_size: int,
        n_tasks: int,
        window_size: int,
        compute_on_all_ranks: bool = False,
        should_validate_update: bool = False,
        compute_mode: RecComputeMode = RecComputeMode.UNFUSED_TASKS_COMPUTATION,
        process_group: dist.ProcessGroup | None = None,
        fused_update_limit: int = 0,
        allow_missing_label_with_zero_weight: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        kwargs.pop("enable_pt2_compile", None)
        if args or kwargs:
            raise ValueError(
                f"arguments of {type(self).__name__}: got unknown {[*args, *kwargs]}, expected those of its constructor"
            )
        self._my_rank, self._batch_size, self._n_tasks = my_rank, batch_size, n_tasks
        self._window_size = window_size
        self._compute_on_all_ranks = compute_on_all_ranks
        self._should_validate_update = should_validate_update
        self._compute_mode, self._fused_update_limit = compute_mode, fused_update_limit
        self._allow_missing_label_with_zero_weight = allow_missing_label_with_zero_weight
        self._process_group = process_group
        self._defaults: dict[str, State] = {}
        self._reductions: dict[str, Reduction] = {}
        self._windows: dict[str, WindowBuffer] = {}
        self._local: dict[str, State] | None = None
        if should_validate_update:
            self._add_state(
                "has_valid_update",
                torch.zeros(n_tasks, dtype=torch.uint8),
                add_window_state=False,
                dist_reduce_fx=lambda gathered: gathered.any(dim=0).byte(),
                persistent=True,
            )

    def _add_state(
        self,
        name: str,
        default: State,
        add_window_state: bool,
        *,
        dist_reduce_fx: Reduction = "sum",
        persistent: bool = False,
    ) -> None:
        """Add a state as an attribute.

        Args:
            name: The attribute.
            default: Its first value, ``[T, ...]``, or a list of tensors ``[T, N]``.
            add_window_state: Whether the same of the window is kept too.
            dist_reduce_fx: What makes one state of all ranks': ``"sum"``, or a function of them ``[ranks, T, ...]``.
                Lists are put together.
            persistent: Whether the state is in the state dict.
        """
        self._reductions[name] = dist_reduce_fx
        self._defaults[name] = default.clone() if isinstance(default, Tensor) else list(default)
        if isinstance(default, Tensor):
            self.register_buffer(name, default.clone(), persistent=persistent)
        else:
            setattr(self, name, list(default))
        if add_window_state:
            window = self.get_window_state_name(name)
            self._windows[window] = WindowBuffer(self._window_size, MAX_BUFFER_COUNT)
            self._add_state(window, default, add_window_state=False, dist_reduce_fx=dist_reduce_fx)

    def _add_sums(self, *names: str, persistent: bool = True) -> None:
        """Add sums over examples, float64 ``[T]``, of the lifetime and of the window."""
        for name in names:
            zeros = torch.zeros(self._n_tasks, dtype=torch.float64)
            self._add_state(name, zeros, add_window_state=True, persistent=persistent)

    def _add_up(self, parts: Mapping[str, Tensor], num_samples: int) -> None:
        """Add a batch's parts to the sums of their names."""
        for name, part in parts.items():
            state = getattr(self, name)
            state += part
            self._aggregate_window_state(name, part, num_samples)

    def _aggregate_window_state(self, state_name: str, state: Tensor, num_samples: int) -> None:
        """Add a batch's part to the sum of the window."""
        window = self.get_window_state_name(state_name)
        self._windows[window].aggregate_state(getattr(self, window), state, num_samples)

    def _reports(
        self, name: MetricNameBase, value: Callable[..., Tensor], *states: str
    ) -> list[MetricComputationReport]:
        """Return a function's values of the states of the lifetime and of the window."""
        lifetime = value(*(getattr(self, state) for state in states))
        window = value(*(self.get_window_state(state) for state in states))
        return [
            MetricComputationReport(name, MetricPrefix.LIFETIME, lifetime),
            MetricComputationReport(name, MetricPrefix.WINDOW, window),
        ]

    @staticmethod
    def get_window_state_name(state_name: str) -> str:
        """Return the attribute of the window's state."""
        return f"window_{state_name}"

    def get_window_state(self, state_name: str) -> Tensor:
        """Return the window's state."""
        state: Tensor = getattr(self, self.get_window_state_name(state_name))
        return state

    @abstractmethod
    def update(
        self, *, predictions: Tensor | None, labels: Tensor, weights: Tensor | None, **kwargs: Any
    ) -> None:
        """Take a batch, ``[T, N]`` each."""

    @abstractmethod
    def _compute(self) -> list[MetricComputationReport]:
        """Return the numbers of the present states."""

    def pre_compute(self) -> None:
        """Do what is to be done before states are reduced: nothing."""

    def compute(self) -> list[MetricComputationReport]:
        """Return the numbers of all ranks, each of which calls this; none on ranks that do not get them."""
        is_mine = self._local is None
        if is_mine:
            self.sync()
        try:
            return self._compute() if self._my_rank == 0 or self._compute_on_all_ranks else []
        finally:
            if is_mine:
                self.unsync()

    def local_compute(self) -> list[MetricComputationReport]:
        """Return the numbers of this rank."""
        return self._compute()

    def sync(self) -> None:
        """Exchange this rank's states for those of all ranks, until ``unsync``."""
        if self._local is not None:
            raise RecMetricException("sync: the states are those of all ranks already; call unsync first")
        self._local = {name: getattr(self, name) for name in self._defaults}
        if not (dist.is_available() and dist.is_initialized()):
            return
        group = self._process_group or dist.group.WORLD
        assert group is not None
        for name, state in self._local.items():
            setattr(self, name, _reduced(state, self._reductions[name], group))

    def unsync(self) -> None:
        """Put this rank's states back."""
        for name, state in (self._local or {}).items():
            setattr(self, name, state)
        self._local = None

    def kept_tensors(self) -> list[Tensor]:
        """Return the states, and the parts of those of windows."""
        kept = [part for window in self._windows.values() for part in window.buffers]
        for name in self._defaults:
            state = getattr(self, name)
            kept += [state] if isinstance(state, Tensor) else state
        return kept

    def reset(self) -> None:
        """Forget all batches."""
        for name, default in self._defaults.items():
            state = getattr(self, name)
            if isinstance(default, Tensor):
                state.copy_(default)
            else:
                setattr(self, name, list(default))
        self._windows = {name: WindowBuffer(self._window_size, MAX_BUFFER_COUNT) for name in self._windows}


def _reduced(state: State, reduction: Reduction, group: dist.ProcessGroup) -> State:
    if isinstance(state, list):
        joined = torch.cat(state, dim=-1)
        return [torch.cat([rows.T for rows in gather_rows(joined.T.contiguous(), group)], dim=-1)]
    gathered = [torch.empty_like(state) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, state, group=group)
    stacked = torch.stack(gathered)
    reduced: Tensor = stacked.sum(dim=0) if isinstance(reduction, str) else reduction(stacked)
    return reduced
