"""Where shards can lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from recsys.errors import PlanError


@dataclass(frozen=True, kw_only=True)
class ShardingEnv:
    """The ranks of a plan: here, the devices of one process.

    Attributes:
        devices: rank r's device; the same device may stand there several times. The first also runs the
            model's dense layers and holds the assembled output.
    """

    devices: tuple[torch.device, ...]

    @property
    def world_size(self) -> int:
        """W."""
        return len(self.devices)

    def lacking(self) -> list[str]:
        """The devices that this machine does not have."""
        available = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return [str(d) for d in self.devices if d.type == "cuda" and d.index >= available]

    @staticmethod
    def from_local(devices: Sequence[str | torch.device]) -> ShardingEnv:
        """The devices of this process, such as ``["cpu", "cpu"]`` or ``["cuda:0", "cuda:1"]``.

        The devices need not exist: a model can be exported for a machine other than this one.

        Raises:
            PlanError: no device, or one of an unknown kind.
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
        return ShardingEnv(devices=tuple(found))
