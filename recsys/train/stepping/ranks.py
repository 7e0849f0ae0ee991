"""The ranks of a training, their process group, and the whole model on rank 0."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed._shard.sharded_tensor.api import ShardedTensor

from recsys.configs import BaseEmbeddingConfig
from recsys.find_collections import find_collections
from recsys.kernels.training import DIM_MULTIPLE
from recsys.model_parallel import DistributedModelParallel
from recsys.quant import float_tables
from recsys.sharding.plan.env import ShardingEnv, num_cuda_devices
from recsys.sharding.plan.plan import ParameterSharding, ShardingPlan
from recsys.sharding.plan.sharding_types import table_wise
from recsys.training.snapshot import gathered

_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
#: A rank may wait while another one reads, evaluates or writes; torch's default for gloo is the same.
DEFAULT_TIMEOUT = timedelta(minutes=30)
_HOST = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This rank among the others.

    Attributes:
        rank: This rank's number; rank 0 prints and writes results.
        world_size: W.
        local_world_size: Ranks per host.
        device: The device of this rank.
    """

    rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    device: torch.device = _HOST

    def env(self) -> ShardingEnv:
        """Return the ranks for sharders, inside ``process_group``."""
        group = dist.group.WORLD
        assert group is not None
        return ShardingEnv.from_process_group(group, self.device, self.local_world_size)


ONE_RANK = Ranks()


def find_ranks(device_type: str) -> Ranks:
    """Return the ranks that torchrun describes in the environment; one rank without torchrun.

    Args:
        device_type: "cpu", or "cuda": local rank r uses ``cuda:r``.

    Raises:
        ValueError: The environment is incomplete or wrong, or this host lacks the device.
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
    num_devices = num_cuda_devices()
    if local_rank >= num_devices:
        raise ValueError(
            f"--device: got 'cuda' for local rank {local_rank}, but this host has {num_devices} CUDA devices; expected "
            "cpu, or at most as many ranks per host as devices"
        )
    return torch.device("cuda", local_rank)


@contextmanager
def process_group(ranks: Ranks, timeout: timedelta = DEFAULT_TIMEOUT) -> Iterator[None]:
    """Initialize ``torch.distributed`` for these ranks: gloo, or NCCL on CUDA devices. One rank needs no network.

    An existing group of these ranks is used, and not destroyed.

    Args:
        ranks: The result of ``find_ranks``.
        timeout: Time after which a rank that waits for others fails.

    Raises:
        ValueError: This process is in a group of other ranks.
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
        alone = dist.HashStore()
        dist.init_process_group(backend, store=alone, rank=0, world_size=1, timeout=timeout)
    else:
        dist.init_process_group(
            backend, init_method="env://", rank=ranks.rank, world_size=ranks.world_size, timeout=timeout
        )
    try:
        yield
    finally:
        dist.destroy_process_group()
        # A model refers to its group, in cycles, and the group owns gloo's threads. A thread that frees the
        # last tensor of a collective during interpreter shutdown aborts the process, so the threads are ended
        # here.
        gc.collect()


def _number(name: str, least: int) -> int:
    text = os.environ[name]
    number = int(text) if text.isdecimal() else -1
    if number < least:
        raise ValueError(
            f"environment {name}: got {text[:40]!r}, expected a whole number of at least {least}"
        )
    return number


def one_rank_plan(model: nn.Module) -> ShardingPlan:
    """Return every table of a model whole on the only rank, with the fused kernel where its width allows it."""
    return ShardingPlan(
        plan={
            path: {table.name: _whole(table) for table in float_tables(collection)}
            for path, collection in find_collections(model).items()
        }
    )


def _whole(table: BaseEmbeddingConfig) -> ParameterSharding:
    kernel = "dense" if table.embedding_dim % DIM_MULTIPLE else "fused"
    return table_wise(table, 0).with_kernel(kernel)


@torch.no_grad()
def whole_state_dict(model: DistributedModelParallel) -> dict[str, Tensor] | None:
    """Return the unsharded state dict in rank 0's host memory; None on other ranks. Every rank must call it.

    Rank 0 needs memory for all tables, other ranks no additional memory.
    """
    group = model.env.process_group
    assert group is not None
    whole: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        if isinstance(value, ShardedTensor):
            table = gathered(value, group, model.device)
        else:
            table = value.detach().to("cpu", copy=True) if model.env.rank == 0 else None
        if table is not None:
            whole[name] = table
    return whole if model.env.rank == 0 else None
