"""The ranks of a training: those that torchrun has started, or this process alone."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed as dist

from recsys.sharding.env import ShardingEnv

_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
#: A rank may wait while another one reads, evaluates or writes; torch's own default for gloo is as long.
DEFAULT_TIMEOUT = timedelta(minutes=30)
_HOST = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This rank among the others.

    Attributes:
        rank: this one's number; rank 0 speaks to people and writes for them.
        world_size: W.
        local_world_size: ranks per host.
        device: of this rank.
    """

    rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    device: torch.device = _HOST

    def env(self) -> ShardingEnv:
        """The ranks as sharders take them, inside ``process_group``."""
        group = dist.group.WORLD
        assert group is not None
        return ShardingEnv.from_process_group(group, self.device, self.local_world_size)


ONE_RANK = Ranks()


def find_ranks(device_type: str) -> Ranks:
    """What torchrun says in the environment; one rank where it says nothing.

    Args:
        device_type: "cpu", or "cuda": local rank r uses ``cuda:r``.

    Raises:
        ValueError: the environment is incomplete or wrong, or this host lacks the device.
    """
    given = [name for name in _NAMES if name in os.environ]
    if "WORLD_SIZE" not in given and "RANK" not in given:
        return Ranks(device=_device(device_type, 0))
    missing = [name for name in _NAMES if name not in given]
    if missing:
        raise ValueError(f"environment: missing {missing}; torchrun sets them")
    world_size, local_rank = _number("WORLD_SIZE", 1), _number("LOCAL_RANK", 0)
    rank = _number("RANK", 0)
    if rank >= world_size:
        raise ValueError(f"environment RANK: got {rank}, expected one below WORLD_SIZE {world_size}")
    return Ranks(
        rank=rank,
        world_size=world_size,
        local_world_size=_number("LOCAL_WORLD_SIZE", 1) if "LOCAL_WORLD_SIZE" in os.environ else world_size,
        device=_device(device_type, local_rank),
    )


def _device(device_type: str, local_rank: int) -> torch.device:
    if device_type == "cpu":
        return _HOST
    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if local_rank >= num_devices:
        raise ValueError(f"--device: got 'cuda' for local rank {local_rank}, but this host has {num_devices}")
    return torch.device("cuda", local_rank)


@contextmanager
def process_group(ranks: Ranks, timeout: timedelta = DEFAULT_TIMEOUT) -> Iterator[None]:
    """``torch.distributed`` for these ranks: gloo, or NCCL on CUDA devices. One rank needs no network.

    A group of these ranks that stands already is used, and left standing.

    Args:
        ranks: what ``find_ranks`` gave.
        timeout: after which a rank that waits for the others in vain fails.

    Raises:
        ValueError: this process is in a group of other ranks.
    """
    if dist.is_initialized():
        found = (dist.get_rank(), dist.get_world_size())
        if found != (ranks.rank, ranks.world_size):
            raise ValueError(
                f"torch.distributed: this process is rank {found[0]} of {found[1]}, expected rank {ranks.rank} of "
                f"{ranks.world_size}"
            )
        yield
        return
    backend = "nccl" if ranks.device.type == "cuda" else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(ranks.device)
    if ranks.world_size == 1:
        alone = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=alone, rank=0, world_size=1, timeout=timeout)
    else:
        dist.init_process_group(
            backend, init_method="env://", rank=ranks.rank, world_size=ranks.world_size, timeout=timeout
        )
    try:
        yield
    finally:
        dist.destroy_process_group()
        # A model refers to its group, in cycles, and the group has gloo's threads. One that frees the last tensor of a
        # collective while the interpreter shuts down aborts the process, so they end here.
        gc.collect()


def _number(name: str, least: int) -> int:
    text = os.environ[name]
    number = int(text) if text.isdecimal() else -1
    if number < least:
        raise ValueError(
            f"environment {name}: got {text[:40]!r}, expected a whole number of at least {least}"
        )
    return number
