"""The planner, which makes a sharding plan for a model or for tables.

Shape letters: W world size.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from recsys.configs import BaseEmbeddingConfig
from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection, takes_weights
from recsys.errors import PlanError
from recsys.find_collections import find_collections
from recsys.planner.constants import DEFAULT_RESERVED_FRACTION
from recsys.planner.cost.constraints import ParameterConstraints
from recsys.planner.cost.estimate import Estimator, Workload, step_latency_us
from recsys.planner.cost.tables import as_sharders_allow, collection_tables, planned_tables
from recsys.planner.cost.topology import Topology, default_topology
from recsys.planner.evaluate import Evaluation, evaluate, plan_of
from recsys.planner.fit import Problem, not_fitting, with_room
from recsys.planner.search.bounds import of_any_plan
from recsys.planner.search.search import search
from recsys.sharding.mappings import tables_to_divide
from recsys.sharding.plan.device_rows import table_path
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.sharders import get_default_sharders

# Weights, gradients and two numbers of optimizer state (Adam).
_DENSE_COPIES = 4


@dataclass(frozen=True, kw_only=True)
class PlanResult:
    """A plan and its estimated cost.

    Attributes:
        plan: The plan.
        problem: The planning problem.
        evaluation: The cost of each shard.
        least_us: Lower bound of any plan's worst rank; 0 if the plan itself does not fit.
        latency_us: The latency of the collective calls of a step, on every rank.
    """

    plan: ShardingPlan
    problem: Problem
    evaluation: Evaluation
    least_us: float
    latency_us: float


class EmbeddingShardingPlanner:
    """Plans how tables are sharded.

    A table whose mapping of raw IDs has buckets for all ranks is cut by rows, and the mapping with it, unless its
    constraints name sharding types.

    Args:
        topology: The topology of the ranks; by default that of the process group, with the memory of this machine.
        batch_size: Samples per rank and step; 512 by default.
        constraints: Constraints by table path, or by table name.
        workload: Training with row-wise Adagrad by default.
        reserved_fraction: The fraction of each rank's device memory that is not for tables; 0.15 by default.

    Raises:
        PlanError: A number is invalid.
    """

    def __init__(
        self,
        topology: Topology | None = None,
        batch_size: int | None = None,
        *,
        constraints: Mapping[str, ParameterConstraints] | None = None,
        workload: Workload | None = None,
        reserved_fraction: float = DEFAULT_RESERVED_FRACTION,
    ) -> None:
        if batch_size is not None and batch_size < 1:
            raise PlanError(f"batch_size: got {batch_size}, expected at least 1")
        if not 0 <= reserved_fraction < 1:
            raise PlanError(f"reserved_fraction: got {reserved_fraction}, expected at least 0, below 1")
        self._topology = topology
        self._batch_size = batch_size
        self._constraints = constraints
        self._workload = workload or Workload()
        self._reserved_fraction = reserved_fraction

    def plan(self, module: nn.Module, sharders: Sequence[Any] | None = None) -> ShardingPlan:
        """Plan all collections of a model.

        Args:
            module: The float model; it may be on the ``meta`` device.
            sharders: Only collections of their ``module_type`` are planned; all by default.

        Raises:
            PlanError: There is no collection, constraints cannot be met, or the tables do not fit: the
                message names the table, the missing bytes and remedies.
        """
        return self._plan(module, sharders, None)

    def collective_plan(
        self,
        module: nn.Module,
        sharders: Sequence[object] | None = None,
        pg: dist.ProcessGroup | None = None,
    ) -> ShardingPlan:
        """Return the same plan on every rank: the group's first rank plans and broadcasts. All ranks must call it.

        Raises:
            PlanError: On every rank, for the errors of ``plan`` on the first.
        """
        pg = pg or dist.group.WORLD
        shared: list[Any] = [None]
        if dist.get_rank(pg) == 0:
            shared = [self._answer(module, sharders, pg)]
        device = torch.device("cuda", torch.cuda.current_device()) if "nccl" in dist.get_backend(pg) else None
        dist.broadcast_object_list(shared, group=pg, group_src=0, device=device)
        answer = shared[0]
        if isinstance(answer, PlanError):
            raise answer
        assert isinstance(answer, ShardingPlan)
        return answer

    def _answer(
        self, module: nn.Module, sharders: Sequence[object] | None, pg: dist.ProcessGroup | None
    ) -> ShardingPlan | PlanError:
        try:
            topology = self._topology or topology_here(pg)
            if topology.world_size != dist.get_world_size(pg):
                raise PlanError(
                    f"topology.world_size: got {topology.world_size}, expected the group's {dist.get_world_size(pg)}"
                )
            return self._plan(module, sharders, topology)
        except PlanError as error:  # the other ranks wait for a result
            return error
        except ValueError as error:
            return PlanError(str(error))
        except Exception as error:
            return PlanError(f"planning failed: {type(error).__name__}: {error}")

    def _plan(
        self, module: nn.Module, sharders: Sequence[Any] | None, topology: Topology | None
    ) -> ShardingPlan:
        problem = self.problem(module, list(sharders or get_default_sharders()), topology)
        return self.result(problem).plan

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
        topology = topology or self._topology or topology_here()
        collections = find_collections(module, _module_types(sharders), PlanError)
        weighted = frozenset(path for path, found in collections.items() if takes_weights(found))
        held = {id(parameter) for found in collections.values() for parameter in found.parameters()}
        dense_bytes = sum(p.numel() * p.element_size() for p in module.parameters() if id(p) not in held)
        problem = self._problem(
            collection_tables(collections),
            weighted,
            topology,
            self._constraints_for(module, set(collections), topology.world_size),
        )
        device = problem.topology.compute_device
        copies = _DENSE_COPIES if self._workload.is_training else 1
        return replace(
            problem,
            tables=as_sharders_allow(problem.tables, collections, sharders or (), device),
            reserved_bytes=dense_bytes * copies,
        )

    def problem_of(
        self, tables: Mapping[str, Sequence[BaseEmbeddingConfig]], weighted: frozenset[str] = frozenset()
    ) -> Problem:
        """Return the planning problem of tables by collection path.

        Raises:
            PlanError: As ``plan``.
        """
        return self._problem(tables, weighted, self._topology or topology_here(), self._constraints)

    def _constraints_for(
        self, module: nn.Module, paths: Set[str], world_size: int
    ) -> Mapping[str, ParameterConstraints]:
        """Return the constraints, with those of tables whose mappings ranks can share."""
        found = dict(self._constraints or {})
        for path, table in tables_to_divide(module, world_size) if self._workload.is_training else ():
            at = table_path(path, table)
            asked = found.get(at, found.get(table, ParameterConstraints()))
            if path in paths and asked.sharding_types is None:
                found[at] = replace(asked, sharding_types=["row_wise"])
        return found

    def _problem(
        self,
        tables: Mapping[str, Sequence[BaseEmbeddingConfig]],
        weighted: frozenset[str],
        topology: Topology,
        constraints: Mapping[str, ParameterConstraints] | None,
    ) -> Problem:
        return Problem(
            tables=planned_tables(tables, constraints, self._batch_size, weighted),
            topology=topology,
            workload=self._workload,
            reserved_fraction=self._reserved_fraction,
        )

    def result(self, problem: Problem) -> PlanResult:
        """Search for the best plan.

        Raises:
            PlanError: As ``plan``.
        """
        capacity, options = problem.capacity(), problem.options()
        kept, misfit = with_room(options, capacity)
        found = None if misfit is not None else search(capacity, kept)
        if found is None or found.placement is None:
            misfit = misfit or (found.misfit if found else None)
            assert misfit is not None
            raise not_fitting(problem, options, misfit)
        plan = plan_of(problem.tables, found.placement, problem.workload.is_training)
        return _evaluated(problem, plan, found.least_us)

    def evaluated(self, problem: Problem, plan: ShardingPlan) -> PlanResult:
        """Estimate the cost of a given plan.

        Raises:
            PlanError: The plan does not fit the tables or the ranks. Too little memory is not an error here.
        """
        capacity = problem.capacity()
        kept, misfit = with_room(problem.options(), capacity)
        return _evaluated(problem, plan, 0.0 if misfit is not None else of_any_plan(capacity, kept))


def _evaluated(problem: Problem, plan: ShardingPlan, least_us: float) -> PlanResult:
    evaluation = evaluate(problem.tables, plan, Estimator(problem.topology, problem.workload))
    sharded = any(not sharding.is_replicated for sharding in evaluation.shardings)
    return PlanResult(
        plan=plan,
        problem=problem,
        evaluation=evaluation,
        least_us=least_us,
        latency_us=step_latency_us(problem.topology, problem.workload) if sharded else 0.0,
    )


def topology_here(
    pg: dist.ProcessGroup | None = None, device: str | None = None, local_world_size: int | None = None
) -> Topology:
    """Return a topology of this machine's memory, the process group's ranks, and the constants of ``topology.py``.

    Args:
        pg: The ranks; the default group's if None.
        device: The device of each rank, ``cuda`` or ``cpu``; by default ``cuda`` where there is one.
        local_world_size: Ranks per host; by default what torchrun says, or all.

    Raises:
        PlanError: ``local_world_size`` does not divide the ranks.
    """
    world_size = dist.get_world_size(pg) if dist.is_available() and dist.is_initialized() else 1
    local = local_world_size or int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    topology = default_topology(device, world_size=world_size, local_world_size=local)
    host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    topology = topology.replaced(ddr=replace(topology.ddr, capacity_bytes=host_bytes // local))
    if topology.hbm is None:
        return topology
    device_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    return topology.replaced(hbm=replace(topology.hbm, capacity_bytes=device_bytes))


def _module_types(sharders: Sequence[object] | None) -> tuple[type[nn.Module], ...]:
    every: tuple[type[nn.Module], ...] = (EmbeddingBagCollection, EmbeddingCollection)
    if sharders is None:
        return every
    found = tuple(getattr(sharder, "module_type", None) for sharder in sharders)
    wrong = [type(s).__name__ for s, kind in zip(sharders, found, strict=True) if not isinstance(kind, type)]
    if wrong:
        raise PlanError(f"sharders: got {wrong}, which name no module_type; expected sharders of collections")
    return tuple(kind for kind in found if isinstance(kind, type) and issubclass(kind, nn.Module))
