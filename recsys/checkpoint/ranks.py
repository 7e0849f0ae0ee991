"""Agreement of ranks that write or read a checkpoint: values, errors, random numbers."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from recsys.errors import CheckpointError


def group_of(model: nn.Module) -> dist.ProcessGroup | None:
    """Return the ranks that share a model; None for a process alone."""
    env = getattr(model, "env", None)
    group = None if env is None else env.process_group
    if group is None and dist.is_available() and dist.is_initialized():
        group = dist.group.WORLD
    return group


def gathered(value: Any, error: str | None, group: dist.ProcessGroup | None) -> list[Any]:
    """Return every rank's value, in the order of the ranks, if no rank has an error.

    Raises:
        CheckpointError: On every rank, with the error of the first rank that has one.
    """
    shared: list[Any] = [(value, error)]
    if group is not None:
        shared = [None] * dist.get_world_size(group)
        dist.all_gather_object(shared, (value, error), group=group)
    for rank, (_, text) in enumerate(shared):
        if text is not None:
            raise CheckpointError(text if group is None else f"rank {rank}: {text}")
    return [found for found, _ in shared]


def from_first(
    make: Callable[[], str], group: dist.ProcessGroup | None, error: type[CheckpointError] = CheckpointError
) -> str:
    """Return rank 0's result of ``make`` on every rank.

    Args:
        make: Called on rank 0 only.
        group: The ranks.
        error: The error to raise.

    Raises:
        error: On every rank, if rank 0 fails.
    """
    shared: list[Any] = ["", None]
    if group is None or dist.get_rank(group) == 0:
        try:
            shared = [make(), None]
        except (OSError, ValueError) as wrong:
            shared = ["", str(wrong)]
    if group is not None:
        dist.broadcast_object_list(shared, src=dist.get_global_rank(group, 0), group=group)
    if shared[1] is not None:
        raise error(shared[1])
    return str(shared[0])


def rng_states() -> dict[str, Any]:
    """Return the state of this process's random number generators as plain data."""
    version, numbers, gauss = random.getstate()
    states = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    encoded = {name: base64.b64encode(state.numpy().tobytes()).decode() for name, state in states.items()}
    return {**encoded, "python": [version, list(numbers), gauss]}


def set_rng_states(saved: Any) -> None:
    """Restore the state that ``rng_states`` returned.

    Raises:
        CheckpointError: The data is not such a state.
    """
    try:
        version, numbers, gauss = saved["python"]
        random.setstate((version, tuple(numbers), gauss))
        torch.set_rng_state(_bytes(saved["torch"]))
        if "cuda" in saved and torch.cuda.is_available():
            torch.cuda.set_rng_state(_bytes(saved["cuda"]))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"training.json: ranks.rng: cannot be set: {error}") from None


def _bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text, validate=True)), dtype=torch.uint8)
