"""Ratings of plans, by TorchRec's names; less is better."""

from __future__ import annotations

from recsys.as_torchrec.planner.interfaces import PerfModel, ShardingOption
from recsys.planner.cost.topology import Topology


class NoopPerfModel(PerfModel):
    """Rates a plan by the time of its slowest rank.

    Args:
        topology: The ranks.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    def rate(self, plan: list[ShardingOption]) -> float:
        """Return the time of the slowest rank."""
        by_rank = [0.0] * self._topology.world_size
        for shard in (shard for option in plan for shard in option.shards):
            assert shard.rank is not None
            assert shard.perf is not None
            by_rank[shard.rank] += shard.perf.total
        return max(by_rank)


class NoopStorageModel(PerfModel):
    """Rates a plan by the device memory of its fullest rank (host memory on a CPU).

    Args:
        topology: The ranks.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    def rate(self, plan: list[ShardingOption]) -> float:
        """Return the bytes of the fullest rank."""
        by_rank = [0] * self._topology.world_size
        for shard in (shard for option in plan for shard in option.shards):
            assert shard.rank is not None
            assert shard.storage is not None
            by_rank[shard.rank] += shard.storage.ddr if self._topology.hbm is None else shard.storage.hbm
        return float(max(by_rank))
