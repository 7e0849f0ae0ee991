"""Shards, options, and the interfaces of the planner's parts, by TorchRec's names.

A plan is made in steps: an ``Enumerator`` lists the options of each table with the estimates of a
``ShardEstimator``, a ``Proposer`` chooses one for each table, a ``Partitioner`` places it on ranks, and a
``PerfModel`` rates what was placed.
"""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch import Tensor, nn

from recsys.configs import DataType
from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection
from recsys.planner.constants import BATCH_SIZE
from recsys.planner.cost.capacity import Perf, Storage
from recsys.planner.cost.constraints import ParameterConstraints
from recsys.planner.cost.topology import Topology
from recsys.sharding.plan.kinds import CacheParams
from recsys.sharding.plan.plan import ShardingPlan

Constraints = Mapping[str, ParameterConstraints]


class PartitionByType(Enum):
    """What the shards of an option are placed on."""

    DEVICE = "device"
    HOST = "host"
    UNIFORM = "uniform"
    MULTI_HOST = "multi_host"


@dataclass
class Shard:
    """A shard of an option: its size and offset (rows, columns), its estimates, and its rank once it is placed."""

    size: list[int]
    offset: list[int]
    storage: Storage | None = None
    perf: Perf | None = None
    rank: int | None = None

    def __hash__(self) -> int:
        return hash((tuple(self.size), tuple(self.offset), self.storage, self.perf, self.rank))


class ShardingOption:
    """One way to shard a table.

    Args:
        name: The table.
        tensor: Its weight, possibly on the meta device.
        module: The path and the module of its collection.
        input_lengths: The expected IDs per bag, for each feature.
        batch_size: Samples per rank and step.
        sharding_type: One of ``SHARDING_TYPES``.
        partition_by: One of the values of ``PartitionByType``.
        compute_kernel: One of ``COMPUTE_KERNELS``.
        shards: The shards.
        cache_params: For the plan.
        enforce_hbm: For the plan.
        stochastic_rounding: For the plan.
        bounds_check_mode: For the plan.
        dependency: The name that options share whose tables must lie together.
        is_pooled: Whether lookups sum rows by bag; by default as the module's are.
        feature_names: The table's features.
        output_dtype: For the plan.
        key_value_params: None.
        num_poolings: Bags per sample, for each feature.
    """

    def __init__(  # noqa: PLR0913  (TorchRec's)
        self,
        name: str,
        tensor: Tensor,
        module: tuple[str, nn.Module],
        input_lengths: list[float],
        batch_size: int,
        sharding_type: str,
        partition_by: str,
        compute_kernel: str,
        shards: list[Shard],
        cache_params: CacheParams | None = None,
        enforce_hbm: bool | None = None,
        stochastic_rounding: bool | None = None,
        bounds_check_mode: Any | None = None,
        dependency: str | None = None,
        is_pooled: bool | None = None,
        feature_names: list[str] | None = None,
        output_dtype: DataType | None = None,
        key_value_params: Any | None = None,
        num_poolings: list[float] | None = None,
    ) -> None:
        self.name = name
        self._tensor = tensor
        self._module = module
        self.input_lengths = input_lengths
        self.batch_size = batch_size
        self.sharding_type = sharding_type
        self.partition_by = partition_by
        self.compute_kernel = compute_kernel
        self.shards = shards
        self.cache_params = cache_params
        self.enforce_hbm = enforce_hbm
        self.stochastic_rounding = stochastic_rounding
        self.bounds_check_mode = bounds_check_mode
        self.dependency = dependency
        self._is_pooled = self.module_pooled(module[1], name) if is_pooled is None else is_pooled
        self.is_weighted = module[1].is_weighted() if isinstance(module[1], EmbeddingBagCollection) else None
        self.feature_names = feature_names
        self.output_dtype = output_dtype
        self.key_value_params = key_value_params
        self.num_poolings = num_poolings

    @property
    def tensor(self) -> Tensor:
        """The table's weight."""
        return self._tensor

    @property
    def module(self) -> tuple[str, nn.Module]:
        """The path and the module of the collection."""
        return self._module

    @property
    def path(self) -> str:
        """The path of the collection."""
        return self._module[0]

    @property
    def fqn(self) -> str:
        """The path of the collection and the name of the table."""
        return f"{self._module[0]}.{self.name}"

    @property
    def cache_load_factor(self) -> float | None:
        """The share of the rows in the device's cache; None if not given."""
        return None if self.cache_params is None else self.cache_params.load_factor

    @property
    def num_shards(self) -> int:
        """The number of shards."""
        return len(self.shards)

    @property
    def num_inputs(self) -> int:
        """The number of features."""
        return len(self.input_lengths)

    @property
    def total_storage(self) -> Storage:
        """The memory of all shards."""
        total = Storage(0, 0)
        for shard in self.shards:
            assert shard.storage is not None
            total += shard.storage
        return total

    @property
    def total_perf(self) -> float:
        """The time of all shards."""
        return sum(shard.perf.total for shard in self.shards if shard.perf is not None)

    @property
    def is_pooled(self) -> bool:
        """Whether lookups sum rows by bag."""
        return self._is_pooled

    @property
    def module_type_key(self) -> str:
        """The module's type, with the name of its Python module."""
        kind = type(self._module[1])
        return f"{kind.__module__}.{kind.__name__}"

    @staticmethod
    def module_pooled(module: nn.Module, sharding_option_name: str) -> bool:
        """Return whether a module sums rows by bag."""
        return not any(
            isinstance(part, EmbeddingCollection)
            and (part is module or any(sharding_option_name in name for name, _ in part.named_parameters()))
            for part in module.modules()
        )

    def get_shards_assignment(self) -> list[int | None]:
        """Return the rank of each shard."""
        return [shard.rank for shard in self.shards]

    def storage_hash(self) -> int:
        """Return a number that is the same for the same option in every process."""
        of = (self.fqn, self.sharding_type, self.compute_kernel, self.cache_load_factor, self.num_shards)
        digest = hashlib.blake2b("|".join(map(str, of)).encode(), digest_size=7).digest()
        return int.from_bytes(digest, byteorder="big")

    def __hash__(self) -> int:
        return hash((self.fqn, self.sharding_type, self.compute_kernel, tuple(self.shards)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardingOption):
            return NotImplemented
        mine = (self.fqn, self.sharding_type, self.compute_kernel, self.shards, self.cache_params)
        return mine == (
            other.fqn,
            other.sharding_type,
            other.compute_kernel,
            other.shards,
            other.cache_params,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> ShardingOption:
        made = copy.copy(self)
        made.shards = copy.deepcopy(self.shards, memo)
        made.cache_params = copy.deepcopy(self.cache_params, memo)
        return made

    def __str__(self) -> str:
        lines = [f"{self.fqn}: {self.sharding_type} {self.compute_kernel}", *map(str, self.shards)]
        return "\n  ".join(lines)


@dataclass
class PlanDebugStats:
    """What the planner's log says of a run: the kind of the planner, and its time limit."""

    planner_type: str
    timeout_seconds: int | None


class ShardEstimator(ABC):
    """Estimates options.

    Args:
        topology: The ranks.
        constraints: Constraints by table.
    """

    def __init__(self, topology: Topology, constraints: Constraints | None = None) -> None:
        self._topology = topology
        self._constraints = constraints

    @abstractmethod
    def estimate(
        self, sharding_options: list[ShardingOption], sharder_data_map: Mapping[str, Any] | None = None
    ) -> None:
        """Set ``perf`` or ``storage`` of the shards, in place."""


class Enumerator(ABC):
    """Lists options.

    Args:
        topology: The ranks.
        batch_size: Samples per rank and step.
        constraints: Constraints by table.
        estimator: The estimators of time and memory.
    """

    def __init__(
        self,
        topology: Topology,
        batch_size: int = BATCH_SIZE,
        constraints: Constraints | None = None,
        estimator: ShardEstimator | Sequence[ShardEstimator] | None = None,
    ) -> None:
        self._topology = topology
        self._batch_size = batch_size
        self._constraints = constraints
        self._estimator = estimator

    @abstractmethod
    def enumerate(self, module: nn.Module, sharders: Sequence[Any]) -> list[ShardingOption]:
        """Return the options of all tables, with estimates."""

    @abstractmethod
    def populate_estimates(self, sharding_options: list[ShardingOption]) -> None:
        """Estimate given options again, in place."""


class Proposer(ABC):
    """Chooses an option for each table, one choice after another."""

    @abstractmethod
    def load(self, search_space: list[ShardingOption], enumerator: Enumerator | None = None) -> None:
        """Take the options to choose from."""

    @abstractmethod
    def feedback(
        self,
        partitionable: bool,
        plan: list[ShardingOption] | None = None,
        perf_rating: float | None = None,
        storage_constraint: Topology | None = None,
    ) -> None:
        """Hear whether the last choice could be placed, and how it was rated."""

    @abstractmethod
    def propose(self) -> list[ShardingOption] | None:
        """Return a choice, None if there are no more."""


class Partitioner(ABC):
    """Places options on ranks."""

    @abstractmethod
    def partition(self, proposal: list[ShardingOption], storage_constraint: Topology) -> list[ShardingOption]:
        """Set the ranks of the shards.

        Raises:
            PlannerError: They do not fit.
        """


class PerfModel(ABC):
    """Rates what was placed; less is better."""

    @abstractmethod
    def rate(self, plan: list[ShardingOption]) -> float:
        """Return the rating."""


class StorageReservation(ABC):
    """Takes off the memory that is not for tables."""

    @abstractmethod
    def reserve(
        self,
        topology: Topology,
        batch_size: int,
        module: nn.Module,
        sharders: Sequence[Any],
        constraints: Constraints | None = None,
    ) -> Topology:
        """Return the topology with what is left on its ``devices``."""

    @property
    @abstractmethod
    def last_reserved_topology(self) -> Topology | None:
        """What ``reserve`` returned last."""


class Stats(ABC):
    """Reports a plan."""

    @abstractmethod
    def log(  # noqa: PLR0913  (TorchRec's)
        self,
        sharding_plan: ShardingPlan,
        topology: Topology,
        batch_size: int,
        storage_reservation: StorageReservation,
        num_proposals: int,
        num_plans: int,
        run_time: float,
        best_plan: list[ShardingOption],
        constraints: Constraints | None = None,
        sharders: Sequence[Any] | None = None,
        enumerator: Enumerator | None = None,
        debug: bool = False,
        debug_stats: PlanDebugStats | None = None,
    ) -> None:
        """Report it."""
