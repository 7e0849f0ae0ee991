"""Examples per second of all ranks together."""

from __future__ import annotations

import time
from collections import deque

import torch
from torch import Tensor, nn

from recsys.as_torchrec.metrics.config import BatchSizeStage, validate_batch_size_stages
from recsys.as_torchrec.metrics.names import MetricName, MetricNamespace, MetricPrefix, compose_metric_key

_MAX_WINDOW_S = 2 * 60 * 60


class ThroughputMetric(nn.Module):
    """Examples per second: of the lifetime, of this process and of the latest seconds.

    Args:
        batch_size: Examples of a batch of a rank.
        world_size: Number of ranks.
        window_seconds: Seconds of the window, two hours at most.
        warmup_steps: Batches before it is measured.
        batch_size_stages: Batch sizes that change, in place of ``batch_size``.

    Raises:
        ValueError: A number is below 1, or the last stage ends.
    """

    total_examples: Tensor
    warmup_examples: Tensor
    time_lapse_after_warmup: Tensor
    attempt_examples: Tensor
    attempt_warmup_examples: Tensor
    attempt_time_lapse_after_warmup: Tensor

    def __init__(
        self,
        *,
        batch_size: int,
        world_size: int,
        window_seconds: int,
        warmup_steps: int = 100,
        batch_size_stages: list[BatchSizeStage] | None = None,
    ) -> None:
        super().__init__()
        for name, number in (("window_seconds", window_seconds), ("warmup_steps", warmup_steps)):
            if number < 1:
                raise ValueError(f"{name}: got {number}, expected 1 at least")
        validate_batch_size_stages(batch_size_stages)
        self._batch_size, self._world_size = batch_size, world_size
        self._window_seconds = min(window_seconds, _MAX_WINDOW_S)
        self._warmup_steps = warmup_steps
        self._stages = [BatchSizeStage(s.batch_size, s.max_iters) for s in batch_size_stages or []]
        self._steps, self._num_batch = 0, 0
        self._window: deque[float] = deque(maxlen=_MAX_WINDOW_S)
        self._previous = 0.0
        for prefix in ("", "attempt_"):
            for kind in ("total", "warmup") if not prefix else ("", "warmup"):
                self._count(
                    f"{prefix}{kind}_examples" if kind else f"{prefix}examples", persistent=not prefix
                )
            self.register_buffer(
                f"{prefix}time_lapse_after_warmup",
                torch.tensor(0, dtype=torch.float64),
                persistent=not prefix,
            )

    def _count(self, name: str, *, persistent: bool) -> None:
        self.register_buffer(name, torch.tensor(0, dtype=torch.int64), persistent=persistent)

    def set_num_batch(self, num_batch: int) -> None:
        """Say how many batches came before, for sizes that change."""
        self._num_batch = num_batch

    def _examples(self) -> int:
        """Return the examples of the present batch, of all ranks."""
        while self._stages and self._stages[0].max_iters is not None:
            if self._stages[0].max_iters >= self._num_batch:
                break
            self._stages.pop(0)
        return (self._stages[0].batch_size if self._stages else self._batch_size) * self._world_size

    def update(self) -> None:
        """Take note that a batch is done."""
        now = time.monotonic()
        self._steps += 1
        self._num_batch += 1
        examples = self._examples()
        self.total_examples += examples
        self.attempt_examples += examples
        if self._steps <= self._warmup_steps:
            self.warmup_examples += examples
            self.attempt_warmup_examples += examples
        else:
            lapse = now - self._previous
            self.time_lapse_after_warmup += lapse
            self.attempt_time_lapse_after_warmup += lapse
            self._window.append(lapse)
            while sum(self._window) > self._window_seconds:
                self._window.popleft()
        self._previous = now

    def compute(self) -> dict[str, Tensor]:
        """Return the numbers by key; after the warm-up the examples per second too."""
        numbers = {
            _key(MetricName.TOTAL_EXAMPLES): self.total_examples.clone(),
            _key(MetricName.ATTEMPT_EXAMPLES): self.attempt_examples.clone(),
        }
        if self._steps > self._warmup_steps:
            lifetime = (self.total_examples - self.warmup_examples) / self.time_lapse_after_warmup
            attempt = self.attempt_examples - self.attempt_warmup_examples
            in_window = len(self._window) * self._examples() / sum(self._window) if any(self._window) else 0.0
            numbers |= {
                _key(MetricName.THROUGHPUT, MetricPrefix.LIFETIME): lifetime,
                _key(MetricName.THROUGHPUT, MetricPrefix.WINDOW): torch.tensor(in_window).double(),
                _key(MetricName.THROUGHPUT, MetricPrefix.ATTEMPT): attempt
                / self.attempt_time_lapse_after_warmup,
            }
        if self._stages:
            size = torch.tensor(self._examples() // self._world_size, dtype=torch.int32)
            numbers[_key(MetricName.BATCH_SIZE)] = size
        return numbers


def _key(name: MetricName, prefix: MetricPrefix = MetricPrefix.DEFAULT) -> str:
    return compose_metric_key(MetricNamespace.THROUGHPUT, str(MetricNamespace.THROUGHPUT), name, prefix)
