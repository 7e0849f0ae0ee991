"""The places of shards: the ranks of a process group, or the devices of one process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import cast

import torch
from torch import distributed as dist

from recsys.errors import PlanError


def num_cuda_devices() -> int:
    """Return the number of CUDA devices of this machine."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


class ShardingEnv:
    """The ranks of a plan.

    Args:
        world_size: W.
        rank: This process's rank in the group, else 0.
        pg: The process group; None for the devices of one process.
        output_dtensor: False: state dicts hold ShardedTensors.
        devices: The device of each rank; a device may occur several times. Of the devices of one process,
            the first also runs the model's dense layers and holds the assembled output. In a process group, each
            rank knows its own device and assumes the same kind for the others. Host memory by default.
        local_world_size: Ranks per host; hosts hold consecutive ranks. All ranks by default.

    Raises:
        PlanError: The rank is not one of the ranks, or ``output_dtensor`` is set.
    """

    def __init__(
        self,
        world_size: int,
        rank: int,
        pg: dist.ProcessGroup | None = None,
        output_dtensor: bool = False,
        *,
        devices: Sequence[torch.device] | None = None,
        local_world_size: int | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise PlanError(f"rank: got {rank}, expected 0 to {world_size - 1} (world_size {world_size})")
        if output_dtensor:
            raise PlanError(
                "output_dtensor: got True, expected False: state dicts hold ShardedTensors, which any plan can load"
            )
        self.rank = rank
        self.process_group = pg
        self.output_dtensor = output_dtensor
        self.devices = (torch.device("cpu"),) * world_size if devices is None else tuple(devices)
        self.local_world_size = world_size if local_world_size is None else local_world_size

    @property
    def world_size(self) -> int:
        """W."""
        return len(self.devices)

    @property
    def device(self) -> torch.device:
        """The device of this process's dense layers and outputs."""
        return self.devices[self.rank]

    def lacking(self) -> list[str]:
        """Return the devices that this machine does not have."""
        available = num_cuda_devices()
        return [str(d) for d in self.devices if d.type == "cuda" and d.index >= available]

    @classmethod
    def from_process_group(
        cls,
        pg: dist.ProcessGroup,
        device: str | torch.device | None = None,
        local_world_size: int | None = None,
    ) -> ShardingEnv:
        """Return the ranks of a process group, each with its own batch.

        Args:
            pg: The group, such as ``torch.distributed.group.WORLD`` after ``init_process_group``.
            device: This rank's device; by default its CUDA device under NCCL, else host memory.
            local_world_size: Ranks per host; by default LOCAL_WORLD_SIZE, which torchrun sets, else all ranks.

        Raises:
            PlanError: The ranks cannot be split into hosts of ``local_world_size``.
        """
        world_size, rank = dist.get_world_size(pg), dist.get_rank(pg)
        if local_world_size is None:
            local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
        if local_world_size < 1 or world_size % local_world_size:
            raise PlanError(
                f"local_world_size: got {local_world_size}, expected a divisor of the {world_size} ranks"
            )
        if device is None:
            uses_cuda = "nccl" in dist.get_backend(pg)
            device = torch.device("cuda", torch.cuda.current_device()) if uses_cuda else torch.device("cpu")
        return cls(
            world_size,
            rank,
            pg,
            devices=(torch.device(device),) * world_size,
            local_world_size=local_world_size,
        )

    def with_group(self, device: torch.device | None = None) -> ShardingEnv:
        """Return these ranks with a process group, and this rank's device, the present one by default.

        One rank without a group gets one of its own. Where ``torch.distributed`` is not initialized, it is initialized
        for this process alone, and stays so.

        Raises:
            PlanError: Several ranks have no group.
        """
        here = self.device if device is None else torch.device(device)
        group = self.process_group
        if group is None:
            if self.world_size > 1:
                raise PlanError(
                    f"env: got {self.world_size} ranks without a process group, expected "
                    "ShardingEnv.from_process_group, or one rank"
                )
            group = _group_of_one(here)
        elif here == self.device:
            return self
        return ShardingEnv.from_process_group(group, here, self.local_world_size)

    @classmethod
    def from_local(cls, world_size: int, rank: int) -> ShardingEnv:
        """Return ranks without a process group, in host memory, for inference.

        Training needs a group: one rank gets one of its own (``with_group``), several are refused.

        Raises:
            PlanError: The rank is not one of the ranks.
        """
        return cls(world_size, rank)

    @staticmethod
    def over_devices(devices: Sequence[str | torch.device]) -> ShardingEnv:
        """Return the devices of this process, such as ``["cpu", "cpu"]`` or ``["cuda:0", "cuda:1"]``.

        The devices need not exist: a model can be exported for a machine other than this one.

        Raises:
            PlanError: No device, or one of an unknown kind.
        """
        if not devices:
            raise PlanError("devices: got none, expected at least one")
        found = []
        for name in devices:
            try:
                device = torch.device(name)
            except RuntimeError:
                raise PlanError(f"devices: got {str(name)!r}, expected cpu or cuda:N") from None
            if device.type not in ("cpu", "cuda", "meta"):
                raise PlanError(f"devices: got {str(name)!r}, expected cpu or cuda:N")
            if device.type == "cuda" and device.index is None:
                device = torch.device("cuda", 0)
            if device.type == "cpu":
                device = torch.device("cpu")
            found.append(device)
        return ShardingEnv(len(found), 0, devices=found)


def _group_of_one(device: torch.device) -> dist.ProcessGroup:
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    if dist.get_world_size() > 1:
        alone: dist.ProcessGroup = dist.new_group([dist.get_rank()], use_local_synchronization=True)
        return alone
    return cast(dist.ProcessGroup, dist.group.WORLD)
