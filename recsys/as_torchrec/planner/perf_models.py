"""Ratings of plans, by TorchRec's names; less is better."""

from __future__ import annotations

from recsys.as_torchrec.planner.interfaces import PerfModel, Shard, ShardingOption
from recsys.planner.cost.topology import Topology


class NoopPerfModel(PerfModel):
    """Rates a plan by the time of its slowest rank.

    Args:
        topology: The ranks.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    def rate(self, plan: list[ShardingOption]) -> float:
        """Return the largest sum over a rank's shards."""
        by_rank = [0.0] * self._topology.world_size
        for shard in (shard for option in plan for shard in option.shards):
            assert shard.rank is not None
            by_rank[shard.rank] += self._of(shard)
        return max(by_rank)

    def _of(self, shard: Shard) -> float:
        assert shard.perf is not None
        return shard.perf.total


class NoopStorageModel(NoopPerfModel):
    """Rates a plan by the device memory of its fullest rank (host memory on a CPU), in bytes.

    Args:
        topology: The ranks.
    """

    def _of(self, shard: Shard) -> float:
        assert shard.storage is not None
        return shard.storage.ddr if self._topology.hbm is None else shard.storage.hbm
