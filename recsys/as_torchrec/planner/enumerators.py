"""The options of each table and their estimates, by TorchRec's names; the numbers are those of ``planner.cost``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from recsys.as_torchrec.planner.interfaces import (
    Constraints,
    Enumerator,
    Shard,
    ShardEstimator,
    ShardingOption,
)
from recsys.as_torchrec.planner.sharder_data import SharderDataMap, build_sharder_data_map
from recsys.as_torchrec.planner.steps import get_partition_by_type, sharder_name
from recsys.configs import BaseEmbeddingConfig
from recsys.embedding import EmbeddingBagCollection, takes_weights
from recsys.errors import PlanError
from recsys.find_collections import find_collections
from recsys.planner.constants import BATCH_SIZE
from recsys.planner.cost.capacity import Perf, Storage
from recsys.planner.cost.constraints import ParameterConstraints
from recsys.planner.cost.enumerators import ShardingOption as Cut
from recsys.planner.cost.enumerators import enumerate_options
from recsys.planner.cost.estimate import Estimator, ShardCost, ShardShape, Workload
from recsys.planner.cost.tables import PlannedTable, as_sharders_allow, planned_tables
from recsys.planner.cost.topology import Topology
from recsys.planner.errors import PlannerError, PlannerErrorType
from recsys.quant import float_tables
from recsys.sharding.plan.kinds import PipelineType
from recsys.sharding.plan.plan import DATA_PARALLEL
from recsys.sharding.plan.sharding_types import column_parts, row_parts


class _CostEstimator(ShardEstimator):
    """Estimates shards by the planner's costs.

    Args:
        topology: The ranks.
        constraints: Constraints by table.
        is_inference: Whether tables are looked up only.
    """

    def __init__(
        self, topology: Topology, constraints: Constraints | None = None, is_inference: bool = False
    ) -> None:
        super().__init__(topology, constraints)
        self._costs = Estimator(topology, Workload(is_training=not is_inference))

    def _of_shards(self, option: ShardingOption) -> Iterator[tuple[Shard, ShardCost]]:
        table = _planned(option, self._constraints)
        known: dict[tuple[int, ...], ShardCost] = {}
        for shard in option.shards:
            num_rows, num_columns = shard.size
            if tuple(shard.size) not in known:
                shape = ShardShape(
                    sharding_type=option.sharding_type,
                    compute_kernel=option.compute_kernel,
                    num_rows=num_rows,
                    num_columns=num_columns,
                )
                known[tuple(shard.size)] = self._costs.shard(table, shape)
            yield shard, known[tuple(shard.size)]


class EmbeddingPerfEstimator(_CostEstimator):
    """Estimates the time of each shard's step, in µs; arguments as ``_CostEstimator``."""

    def estimate(
        self, sharding_options: list[ShardingOption], sharder_data_map: Mapping[str, Any] | None = None
    ) -> None:
        """Set ``perf`` of the shards, in place; ``sharder_data_map`` is not needed."""
        del sharder_data_map
        for option in sharding_options:
            for shard, cost in self._of_shards(option):
                returned = cost.output_us / 2 if self._costs.workload.is_training else 0.0
                shard.perf = Perf(
                    fwd_compute=cost.forward_us,
                    fwd_comms=cost.output_us - returned,
                    bwd_compute=cost.backward_us,
                    bwd_comms=returned,
                    input_dist_comms=cost.input_us,
                )


class EmbeddingStorageEstimator(_CostEstimator):
    """Estimates the memory of each shard: rows, optimizer state, IDs, outputs and gradients of one batch.

    Args:
        topology: The ranks.
        constraints: Constraints by table.
        pipeline_type: Has no effect: batches in transit are part of what is reserved.
        run_embedding_at_peak_memory: Has no effect: outputs always count.
        is_inference: Whether tables are looked up only.
    """

    def __init__(
        self,
        topology: Topology,
        constraints: Constraints | None = None,
        pipeline_type: PipelineType = PipelineType.NONE,
        run_embedding_at_peak_memory: bool = False,
        is_inference: bool = False,
    ) -> None:
        del pipeline_type, run_embedding_at_peak_memory
        super().__init__(topology, constraints, is_inference)

    def estimate(
        self, sharding_options: list[ShardingOption], sharder_data_map: Mapping[str, Any] | None = None
    ) -> None:
        """Set ``storage`` of the shards, in place; ``sharder_data_map`` is not needed."""
        del sharder_data_map
        for option in sharding_options:
            for shard, cost in self._of_shards(option):
                shard.storage = Storage(cost.hbm_bytes, cost.ddr_bytes)


class EmbeddingEnumerator(Enumerator):
    """Lists the options of the tables of a model's collections.

    Args:
        topology: The ranks.
        batch_size: Samples per rank and step.
        constraints: Constraints by table.
        estimator: The estimators; ``EmbeddingPerfEstimator`` and ``EmbeddingStorageEstimator`` by default.
        use_exact_enumerate_order: Has no effect: the order is always that of the tables and types.
    """

    def __init__(
        self,
        topology: Topology,
        batch_size: int = BATCH_SIZE,
        constraints: Constraints | None = None,
        estimator: ShardEstimator | Sequence[ShardEstimator] | None = None,
        use_exact_enumerate_order: bool | None = False,
    ) -> None:
        super().__init__(topology, batch_size, constraints, estimator)
        # TorchRec's names, which enumerators that are derived from this one read.
        self._compute_device = topology.compute_device
        self._world_size = topology.world_size
        self._local_world_size = topology.local_world_size
        self._device_memory_sizes: list[int] | None = None
        self._use_exact_enumerate_order = bool(use_exact_enumerate_order)
        if estimator is None:
            self._estimators: list[ShardEstimator] = [
                EmbeddingPerfEstimator(topology, constraints),
                EmbeddingStorageEstimator(topology, constraints),
            ]
        else:
            self._estimators = [estimator] if isinstance(estimator, ShardEstimator) else list(estimator)
        self._sharder_map: dict[str, Any] = {}
        self._sharder_data_map: SharderDataMap = {}
        self._last_stored_search_space: list[ShardingOption] | None = None

    @property
    def sharder_map(self) -> dict[str, Any]:
        """The sharders of the last model, by the names of their modules' types."""
        return self._sharder_map

    @property
    def last_stored_search_space(self) -> list[ShardingOption] | None:
        """The options of the last model."""
        return self._last_stored_search_space

    def enumerate(self, module: nn.Module, sharders: Sequence[Any]) -> list[ShardingOption]:
        """Return the options of all tables, with estimates.

        Raises:
            PlannerError: A table's constraints leave no option.
        """
        self._sharder_map = {sharder_name(s.module_type): s for s in sharders}
        self._sharder_data_map = build_sharder_data_map(self._sharder_map)
        kinds = tuple(sharder.module_type for sharder in sharders)
        found = []
        try:
            collections = find_collections(module, kinds, PlanError)
            tables = planned_tables(
                {path: float_tables(part) for path, part in collections.items()},
                self._constraints,
                self._batch_size,
                frozenset(p for p, c in collections.items() if takes_weights(c)),
            )
            tables = as_sharders_allow(tables, collections, sharders, self._topology.compute_device)
            costs = Estimator(self._topology, Workload())
            for table, cuts in zip(tables, enumerate_options(tables, costs), strict=True):
                part = collections[table.collection]
                found += [self._option(table, part, cut) for cut in cuts]
        except PlanError as error:
            raise PlannerError(str(error), PlannerErrorType.STRICT_CONSTRAINTS) from None
        self.populate_estimates(found)
        self._last_stored_search_space = found
        return found

    def populate_estimates(self, sharding_options: list[ShardingOption]) -> None:
        """Estimate given options again, in place."""
        for estimator in self._estimators:
            estimator.estimate(sharding_options, self._sharder_data_map)

    def _option(self, table: PlannedTable, part: nn.Module, cut: Cut) -> ShardingOption:
        shards = _shards_of(table.config, cut, self._topology.world_size)
        return option_of(table, part, cut.sharding_type, cut.compute_kernel, shards, self._batch_size)


def option_of(
    table: PlannedTable,
    part: nn.Module,
    sharding_type: str,
    compute_kernel: str,
    shards: list[Shard],
    batch_size: int,
) -> ShardingOption:
    """Return an option of a table of a collection."""
    asked = table.constraints
    factors = list(asked.pooling_factors)
    num_features = max(table.config.num_features(), 1)
    cache = asked.plan_settings()["cache_params"] if compute_kernel == "fused_uvm_caching" else None
    return ShardingOption(
        name=table.config.name,
        tensor=_weight(part, table.config.name),
        module=(table.collection, part),
        input_lengths=factors * num_features if len(factors) == 1 else factors,
        batch_size=batch_size,
        sharding_type=sharding_type,
        partition_by=get_partition_by_type(sharding_type),
        compute_kernel=compute_kernel,
        shards=shards,
        cache_params=cache,
        enforce_hbm=asked.enforce_hbm,
        stochastic_rounding=asked.stochastic_rounding,
        bounds_check_mode=asked.bounds_check_mode,
        is_pooled=table.is_pooled,
        feature_names=list(table.config.feature_names),
        output_dtype=asked.output_dtype,
        num_poolings=None if asked.num_poolings is None else list(asked.num_poolings),
    )


def _shards_of(config: BaseEmbeddingConfig, cut: Cut, world_size: int) -> list[Shard]:
    """Return the rectangles of an option, block by block."""
    if cut.sharding_type == DATA_PARALLEL:
        whole = [config.num_embeddings, config.embedding_dim]
        return [Shard(size=list(whole), offset=[0, 0]) for _ in range(world_size)]
    return [
        Shard(size=[bottom - top, right - left], offset=[top, left])
        for left, right in column_parts(config, len(cut.blocks))
        for top, bottom in row_parts(config, cut.span)
    ]


def _planned(option: ShardingOption, constraints: Constraints | None) -> PlannedTable:
    """Return the table of an option, with its lookups."""
    path, part = option.module
    configs = [config for config in float_tables(part) if config.name == option.name]  # type: ignore[arg-type]
    asked = (constraints or {}).get(option.name) or ParameterConstraints(
        pooling_factors=option.input_lengths, num_poolings=option.num_poolings
    )
    asked = replace(
        asked,
        cache_params=option.cache_params,
        cache_load_factor=option.cache_load_factor or asked.cache_load_factor,
    )
    weighted = frozenset([path]) if option.is_weighted else frozenset[str]()
    return planned_tables({path: configs}, {option.name: asked}, option.batch_size, weighted)[0]


def _weight(part: nn.Module, name: str) -> nn.Parameter:
    container = "embedding_bags" if isinstance(part, EmbeddingBagCollection) else "embeddings"
    return part.get_parameter(f"{container}.{name}.weight")
