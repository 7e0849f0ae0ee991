"""Users' constraints on single tables, and information on them. Names follow TorchRec."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from recsys.errors import PlanError
from recsys.files import read_json
from recsys.json_checks import a_list, flag, known_fields, whole
from recsys.planner.cost.topology import finite, number
from recsys.sharding.plan.plan import COMPUTE_KERNELS, SHARDING_TYPES


@dataclass(frozen=True, kw_only=True)
class ParameterConstraints:
    """Constraints of one table. None leaves the choice, or the default, to the planner.

    Attributes:
        sharding_types: Allowed types, of ``SHARDING_TYPES``.
        compute_kernels: Allowed kernels, of ``COMPUTE_KERNELS``.
        min_partition: The minimum columns of a column-wise shard.
        pooling_factors: Expected IDs per bag, one number per feature, or one for all; 1 by default.
        num_poolings: Bags per sample, in the same form.
        batch_sizes: Samples per rank and step, in the same form; the planner's batch size by default.
        is_weighted: Whether every ID comes with a weight.
        cache_load_factor: The share of the table that ``fused_uvm_caching`` keeps in device memory.
        cache_hit_rate: The share of lookups that hit the cache; by default the load factor, which is the rate
            for uniform IDs. Skewed IDs have a higher rate.

    Raises:
        PlanError: A field is invalid.
    """

    sharding_types: tuple[str, ...] | None = None
    compute_kernels: tuple[str, ...] | None = None
    min_partition: int | None = None
    pooling_factors: tuple[float, ...] | None = None
    num_poolings: tuple[float, ...] | None = None
    batch_sizes: tuple[int, ...] | None = None
    is_weighted: bool | None = None
    cache_load_factor: float = 0.2
    cache_hit_rate: float | None = None

    def __post_init__(self) -> None:
        _subset("sharding_types", self.sharding_types, SHARDING_TYPES)
        _subset("compute_kernels", self.compute_kernels, COMPUTE_KERNELS)
        if self.min_partition is not None and self.min_partition < 1:
            raise PlanError(f"min_partition: got {self.min_partition}, expected at least 1")
        for name in ("pooling_factors", "num_poolings", "batch_sizes"):
            values = getattr(self, name)
            if values is not None and (not values or not all(v >= 0 for v in values)):
                raise PlanError(f"{name}: got {values}, expected numbers of at least 0")
        if not 0 < self.cache_load_factor <= 1:
            raise PlanError(f"cache_load_factor: got {self.cache_load_factor}, expected above 0, at most 1")
        if self.cache_hit_rate is not None and not 0 <= self.cache_hit_rate <= 1:
            raise PlanError(f"cache_hit_rate: got {self.cache_hit_rate}, expected 0 to 1")


def _subset(name: str, values: tuple[str, ...] | None, choices: tuple[str, ...]) -> None:
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


def _one(data: Any, at: str) -> ParameterConstraints:
    known_fields(data, at, [field.name for field in fields(ParameterConstraints)])
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
