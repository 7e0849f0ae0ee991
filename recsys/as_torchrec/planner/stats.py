"""Reports of plans, by TorchRec's names."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from recsys.as_torchrec.planner.interfaces import (
    Constraints,
    Enumerator,
    PlanDebugStats,
    ShardingOption,
    Stats,
    StorageReservation,
)
from recsys.planner.cost.topology import Topology
from recsys.sharding.plan.plan import ShardingPlan

_LOGGER = logging.getLogger(__name__)


class EmbeddingStats(Stats):
    """Writes a plan, and each rank's time and memory, into the log."""

    def log(  # noqa: PLR0913  (TorchRec's)
        self,
        sharding_plan: ShardingPlan,
        topology: Topology,
        batch_size: int,
        storage_reservation: StorageReservation | None,
        num_proposals: int,
        num_plans: int,
        run_time: float,
        best_plan: list[ShardingOption],
        constraints: Constraints | None = None,
        sharders: Sequence[Any] | None = None,
        enumerator: Enumerator | None = None,
        debug: bool = True,
        debug_stats: PlanDebugStats | None = None,
    ) -> None:
        """Write it."""
        del storage_reservation, constraints, sharders, enumerator, debug_stats
        lines = [
            f"plan of {len(best_plan)} tables for {topology.world_size} ranks of {topology.compute_device}, batches of "
            f"{batch_size}: {num_plans} of {num_proposals} proposals fit, {run_time:.2f} s",
            str(sharding_plan),
        ]
        for rank in range(topology.world_size) if debug else ():
            shards = [shard for option in best_plan for shard in option.shards if shard.rank == rank]
            time_us = sum(shard.perf.total for shard in shards if shard.perf is not None)
            held = [shard.storage for shard in shards if shard.storage is not None]
            lines.append(
                f"rank {rank}: {len(shards)} shards, {time_us:.0f} us, {sum(s.hbm for s in held)} bytes of device "
                f"memory, {sum(s.ddr for s in held)} of host memory"
            )
        self._write("\n".join(lines))

    def _write(self, text: str) -> None:
        _LOGGER.info("%s", text)


class NoopEmbeddingStats(EmbeddingStats):
    """Reports nothing."""

    def _write(self, text: str) -> None:
        del text
