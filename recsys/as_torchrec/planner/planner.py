"""The planner with all of TorchRec's arguments."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from recsys.as_torchrec.planner.cuts import plan_of_options
from recsys.as_torchrec.planner.enumerators import (
    EmbeddingEnumerator,
    EmbeddingPerfEstimator,
    EmbeddingStorageEstimator,
    option_of,
)
from recsys.as_torchrec.planner.interfaces import (
    Enumerator,
    Partitioner,
    PerfModel,
    Proposer,
    Shard,
    ShardingOption,
    Stats,
    StorageReservation,
)
from recsys.as_torchrec.planner.reservations import FixedPercentageStorageReservation
from recsys.as_torchrec.planner.search import Found, Parts, find_plan
from recsys.errors import PlanError
from recsys.planner import planner
from recsys.planner.constants import BATCH_SIZE, DEFAULT_RESERVED_FRACTION
from recsys.planner.cost.constraints import ParameterConstraints
from recsys.planner.cost.estimate import Workload
from recsys.planner.cost.topology import Topology
from recsys.planner.fit import Problem
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.sharders import get_default_sharders


class EmbeddingShardingPlanner(planner.EmbeddingShardingPlanner):
    """Plans how tables are sharded.

    Args:
        topology: The topology of the ranks; by default that of the process group, with the memory of this machine.
        batch_size: Samples per rank and step; 512 by default.
        enumerator: Lists the options; by default the planner's.
        storage_reservation: Takes off the memory that is not for tables, instead of ``reserved_fraction``.
        proposer: Chooses an option for each table, in place of the search's proposals.
        partitioner: Places them, in place of the search's partitions.
        performance_model: Rates them; by default the time of the slowest rank.
        stats: Report the plan.
        debug: Whether reports are long.
        callbacks: Change the options of the plan, placed.
        timeout_seconds: Of proposals; they end later if there is no plan yet.
        plan_loader: None: ``read_plan`` reads plans.
        constraints: Constraints by table path, or by table name.
        workload: Training with row-wise Adagrad by default.
        reserved_fraction: The fraction of each rank's device memory that is not for tables; 0.15 by default.

    Raises:
        PlanError: A number is invalid.
    """

    def __init__(  # noqa: PLR0913  (TorchRec's, and ours)
        self,
        topology: Topology | None = None,
        batch_size: int | None = None,
        enumerator: Enumerator | None = None,
        storage_reservation: StorageReservation | None = None,
        proposer: Proposer | Sequence[Proposer] | None = None,
        partitioner: Partitioner | None = None,
        performance_model: PerfModel | None = None,
        stats: Stats | Sequence[Stats] | None = None,
        constraints: Mapping[str, ParameterConstraints] | None = None,
        debug: bool = True,
        callbacks: Sequence[Callable[[list[ShardingOption]], list[ShardingOption]]] | None = None,
        timeout_seconds: int | None = None,
        plan_loader: object | None = None,
        *,
        workload: Workload | None = None,
        reserved_fraction: float = DEFAULT_RESERVED_FRACTION,
    ) -> None:
        super().__init__(
            topology,
            batch_size,
            constraints=constraints,
            workload=workload,
            reserved_fraction=reserved_fraction,
        )
        if plan_loader is not None:
            raise PlanError("plan_loader: got some, expected None: read_plan reads a plan from a file")
        self._parts = Parts(
            enumerator=enumerator,
            proposers=[proposer] if isinstance(proposer, Proposer) else proposer,
            partitioner=partitioner,
            performance_model=performance_model,
            timeout_seconds=timeout_seconds,
        )
        self._callbacks = list(callbacks or ())
        self._stats = [stats] if isinstance(stats, Stats) else list(stats or ())
        self._storage_reservation = storage_reservation
        self._debug = debug

    def _plan(
        self, module: nn.Module, sharders: Sequence[Any] | None, topology: Topology | None
    ) -> ShardingPlan:
        """Plan by the search's own steps, or by the parts that are given in place of some."""
        start = time.monotonic()
        topology = topology or self._topology or planner.topology_here()
        sharders = list(sharders or get_default_sharders())
        if self._parts == Parts(timeout_seconds=self._parts.timeout_seconds):
            problem = self.problem(module, sharders, topology)
            plan = self.result(problem).plan
            found = Found([], 1, 1)
            if self._stats or self._callbacks:
                found = replace(found, options=self._options(module, problem, plan))
        else:
            found, plan = self._by_parts(module, sharders, topology), None
        for callback in self._callbacks:
            found, plan = replace(found, options=callback(found.options)), None
        plan = plan or plan_of_options(found.options, topology)
        for stats in self._stats:
            stats.log(
                sharding_plan=plan,
                topology=topology,
                batch_size=self._batch_size or BATCH_SIZE,
                storage_reservation=self._reservation(),
                num_proposals=found.num_proposals,
                num_plans=found.num_plans,
                run_time=time.monotonic() - start,
                best_plan=found.options,
                constraints=self._constraints,
                sharders=sharders,
                enumerator=self._parts.enumerator,
                debug=self._debug,
            )
        return plan

    def _by_parts(self, module: nn.Module, sharders: Sequence[Any], topology: Topology) -> Found:
        batch_size = self._batch_size or BATCH_SIZE
        left = self._reservation().reserve(topology, batch_size, module, sharders, self._constraints)
        enumerator = self._parts.enumerator or EmbeddingEnumerator(topology, batch_size, self._constraints)
        options = enumerator.enumerate(module, sharders)
        return find_plan(replace(self._parts, enumerator=enumerator), options, left)

    def _reservation(self) -> StorageReservation:
        return self._storage_reservation or FixedPercentageStorageReservation(self._reserved_fraction)

    def problem(
        self,
        module: nn.Module,
        sharders: Sequence[object] | None = None,
        topology: Topology | None = None,
    ) -> Problem:
        """Return the planning problem of a model.

        Raises:
            PlanError: As ``plan``.
        """
        topology = topology or self._topology or planner.topology_here()
        problem = super().problem(module, sharders, topology)
        if self._storage_reservation is None:
            return problem
        left = self._storage_reservation.reserve(
            topology,
            self._batch_size or BATCH_SIZE,
            module,
            list(sharders or get_default_sharders()),
            self._constraints,
        )
        taken = topology.ddr_bytes - left.ddr_bytes
        if topology.hbm is not None:
            taken = topology.hbm_bytes - left.hbm_bytes
        return replace(problem, reserved_fraction=0.0, reserved_bytes=taken)

    def _options(self, module: nn.Module, problem: Problem, plan: ShardingPlan) -> list[ShardingOption]:
        """Return a plan as placed options with estimates, for reports and callbacks."""
        found = []
        for table in problem.tables:
            sharding = plan.of(table.collection)[table.config.name]
            whole = [table.config.num_embeddings, table.config.embedding_dim]
            shards = [Shard(list(s.shard_sizes), list(s.shard_offsets), rank=s.rank) for s in sharding.shards]
            shards = shards or [Shard(whole, [0, 0], rank=r) for r in range(problem.topology.world_size)]
            kernel = sharding.compute_kernel or "fused"
            part = module.get_submodule(table.collection)
            found.append(
                option_of(table, part, sharding.sharding_type, kernel, shards, self._batch_size or BATCH_SIZE)
            )
        for estimator in (EmbeddingPerfEstimator, EmbeddingStorageEstimator):
            estimator(problem.topology, self._constraints).estimate(found)
        return found
