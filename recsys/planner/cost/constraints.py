"""Users' constraints on single tables, and information on them. Names follow TorchRec."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from recsys.base.files import read_json
from recsys.base.json_checks import a_list, flag, known_fields, whole
from recsys.configs import DataType
from recsys.errors import PlanError
from recsys.planner.constants import POOLING_FACTOR, UVM_CACHING_RATIO
from recsys.planner.cost.machine import finite, number
from recsys.sharding.plan.kinds import CacheParams, EmbeddingComputeKernel
from recsys.sharding.plan.plan import SHARDING_TYPES


@dataclass
class ParameterConstraints:
    """Constraints of one table. None leaves the choice, or the default, to the planner.

    Attributes:
        sharding_types: Allowed types, of ``SHARDING_TYPES``.
        compute_kernels: Allowed kernels, by TorchRec's names; those that are not ``COMPUTE_KERNELS`` are never chosen.
        min_partition: The minimum columns of a column-wise shard.
        pooling_factors: Expected IDs per bag, one number per feature, or one for all; 1 by default.
        num_poolings: Bags per sample, in the same form.
        batch_sizes: Samples per rank and step, in the same form; the planner's batch size by default.
        is_weighted: Whether every ID comes with a weight; False leaves it to the collection.
        cache_params: The cache of ``fused_uvm_caching``, for the plan; its load factor is that of the estimate.
        enforce_hbm: Whether the rows of that kernel lie in device memory too, for the plan.
        stochastic_rounding: For the plan.
        bounds_check_mode: For the plan.
        feature_names: The features of the numbers above: those of the table, in its order.
        output_dtype: The data type of the lookup's outputs; FP32 is the only one.
        device_group: The device of the table: the topology's.
        key_value_params: None: there is no kernel that keeps rows elsewhere than in memory.
        use_virtual_table: False, for the same reason.
        cache_load_factor: The share of the table that ``fused_uvm_caching`` keeps in device memory.
        cache_hit_rate: The share of lookups that hit the cache; by default the load factor, which is the rate
            for uniform IDs. Skewed IDs have a higher rate.

    Raises:
        PlanError: A field is invalid.
    """

    sharding_types: Sequence[str] | None = None
    compute_kernels: Sequence[str] | None = None
    min_partition: int | None = None
    pooling_factors: Sequence[float] = field(default_factory=lambda: [POOLING_FACTOR])
    num_poolings: Sequence[float] | None = None
    batch_sizes: Sequence[int] | None = None
    is_weighted: bool = False
    cache_params: CacheParams | None = None
    enforce_hbm: bool | None = None
    stochastic_rounding: bool | None = None
    bounds_check_mode: Any | None = None
    feature_names: Sequence[str] | None = None
    output_dtype: DataType | None = None
    device_group: str | None = None
    key_value_params: Any | None = None
    use_virtual_table: bool = False
    cache_load_factor: float = field(default=UVM_CACHING_RATIO, kw_only=True)
    cache_hit_rate: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _subset("sharding_types", self.sharding_types, SHARDING_TYPES)
        _subset(
            "compute_kernels", self.compute_kernels, tuple(kernel.value for kernel in EmbeddingComputeKernel)
        )
        if self.min_partition is not None and self.min_partition < 1:
            raise PlanError(f"min_partition: got {self.min_partition}, expected at least 1")
        for name in ("pooling_factors", "num_poolings", "batch_sizes"):
            values = getattr(self, name)
            if values is not None and (not values or not all(v >= 0 for v in values)):
                raise PlanError(f"{name}: got {values}, expected numbers of at least 0")
        if self.cache_params is not None and self.cache_params.load_factor is not None:
            self.cache_load_factor = self.cache_params.load_factor
        if not 0 < self.cache_load_factor <= 1:
            raise PlanError(f"cache_load_factor: got {self.cache_load_factor}, expected above 0, at most 1")
        if self.cache_hit_rate is not None and not 0 <= self.cache_hit_rate <= 1:
            raise PlanError(f"cache_hit_rate: got {self.cache_hit_rate}, expected 0 to 1")
        if self.output_dtype not in (None, DataType.FP32):
            raise PlanError(f"output_dtype: got {self.output_dtype}, expected FP32 or None")
        if self.key_value_params is not None or self.use_virtual_table:
            raise PlanError(
                "key_value_params, use_virtual_table: got some, expected None and False: rows lie in memory"
            )

    def plan_settings(self) -> dict[str, Any]:
        """Return what goes into the plan as it is: arguments of ``ParameterSharding``."""
        cache = self.cache_params
        if cache is None and self.cache_load_factor != UVM_CACHING_RATIO:
            cache = CacheParams(load_factor=self.cache_load_factor)
        return {
            "cache_params": cache,
            "enforce_hbm": self.enforce_hbm,
            "stochastic_rounding": self.stochastic_rounding,
            "bounds_check_mode": self.bounds_check_mode,
            "output_dtype": self.output_dtype,
        }


def _subset(name: str, values: Sequence[str] | None, choices: tuple[str, ...]) -> None:
    if values is None:
        return
    unknown = [value for value in values if value not in choices]
    if unknown or not values:
        raise PlanError(f"{name}: got {list(values)}, expected some of {', '.join(choices)}")


def constraints_from_json(data: Any) -> dict[str, ParameterConstraints]:
    """Return constraints by table, from plain data: ``{"user": {"sharding_types": ["row_wise"]}}``.

    Raises:
        PlanError: A field is wrong; the message names the table, the field, what was found and what was expected.
    """
    if not isinstance(data, dict):
        raise PlanError(f"constraints: got {type(data).__name__}, expected an object of tables")
    found = {}
    for table, fields_of_table in data.items():
        at = f"constraints[{table!r}]"
        try:
            found[str(table)] = _one(fields_of_table, at)
        except ValueError as error:
            text = str(error)
            raise PlanError(text if text.startswith(at) else f"{at}.{text}") from None
    return found


def read_constraints(path: str | os.PathLike[str]) -> dict[str, ParameterConstraints]:
    """Return constraints from a JSON file.

    Raises:
        PlanError: The file cannot be read, or does not contain constraints.
    """
    return constraints_from_json(read_json(Path(path), "constraints", PlanError))


def check_names(constraints: Mapping[str, ParameterConstraints], known: set[str]) -> None:
    """Check that every constrained table exists.

    Raises:
        PlanError: Names the tables that do not.
    """
    unknown = sorted(set(constraints) - known)
    if unknown:
        raise PlanError(
            f"constraints: got unknown tables {unknown[:5]}, expected some of {sorted(known)[:20]}"
        )


# What a file can say; the rest are settings of the plan's objects.
_IN_FILES = [
    name.name
    for name in fields(ParameterConstraints)
    if name.name
    not in (
        "cache_params",
        "enforce_hbm",
        "stochastic_rounding",
        "bounds_check_mode",
        "feature_names",
        "output_dtype",
        "device_group",
        "key_value_params",
        "use_virtual_table",
    )
]


def _one(data: Any, at: str) -> ParameterConstraints:
    known_fields(data, at, _IN_FILES)
    values: dict[str, Any] = {}
    for key in data:
        if key in ("sharding_types", "compute_kernels"):
            values[key] = tuple(str(item) for _, item in a_list(data, key, at))
        elif key in ("pooling_factors", "num_poolings"):
            values[key] = tuple(finite(item, to) for to, item in a_list(data, key, at))
        elif key == "batch_sizes":
            values[key] = tuple(int(finite(item, to)) for to, item in a_list(data, key, at))
        elif key == "min_partition":
            values[key] = whole(data, key, at, least=1)
        elif key == "is_weighted":
            values[key] = flag(data, key, at)
        else:
            values[key] = number(data, key, at)
    return ParameterConstraints(**values)
