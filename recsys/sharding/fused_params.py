"""The settings of lookups that train tables, by FBGEMM's names: a sharder's, and those of a plan's tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fbgemm_gpu.split_embedding_configs import SparseType

from recsys.configs import DataType
from recsys.errors import PlanError
from recsys.kernels.bounds import BoundsCheckMode
from recsys.kernels.training import KernelConfig
from recsys.optim.fused_config import FusedConfig
from recsys.sharding.plan.plan import ParameterSharding

#: TorchRec's default of ``cache_load_factor``.
UVM_CACHING_RATIO = 0.2
# Arguments of FBGEMM's module that only the kernel fused_uvm_caching reads.
_CACHE = (
    "cache_algorithm",
    "cache_reserved_memory",
    "cache_precision",
    "prefetch_pipeline",
    "enforce_hbm",
    "multipass_prefetch_config",
)
_PRECISIONS = {DataType.FP32: SparseType.FP32, DataType.FP16: SparseType.FP16, DataType.BF16: SparseType.BF16}
# FBGEMM's second versions of its checks differ in speed only; without a check it trusts IDs, which are checked here.
_FBGEMM_MODES = {
    "FATAL": BoundsCheckMode.FATAL,
    "WARNING": BoundsCheckMode.WARNING,
    "IGNORE": BoundsCheckMode.IGNORE,
    "NONE": BoundsCheckMode.FATAL,
}


@dataclass(frozen=True)
class FusedParams:
    """The ``fused_params`` of a sharder.

    Attributes:
        optimizer: The optimizer in the backward pass.
        cache_load_factor: The share of rows in the device's cache.
        cache: Further arguments of FBGEMM's module for its cache.
        bounds: How an ID outside its table is treated.
    """

    optimizer: FusedConfig
    cache_load_factor: float
    cache: Mapping[str, Any] = field(default_factory=dict)
    bounds: BoundsCheckMode = BoundsCheckMode.FATAL

    @staticmethod
    def of(params: Mapping[str, Any]) -> FusedParams:
        """Split what a sharder was given.

        Raises:
            ValueError: An unknown key, or a value that is not supported.
        """
        rest = dict(params)
        load_factor = rest.pop("cache_load_factor")
        if not 0 < load_factor <= 1:
            raise ValueError(
                f"fused_params['cache_load_factor']: got {load_factor}, expected above 0, at most 1"
            )
        if rest.pop("output_dtype", None) not in (None, DataType.FP32, SparseType.FP32):
            raise ValueError(
                f"fused_params['output_dtype']: got {params['output_dtype']}, expected FP32: lookups of training give "
                "float32"
            )
        return FusedParams(
            cache_load_factor=load_factor,
            cache={name: _for_fbgemm(rest.pop(name)) for name in _CACHE if name in rest},
            bounds=_mode(rest.pop("bounds_check_mode", BoundsCheckMode.FATAL)),
            optimizer=FusedConfig.from_params(rest),
        )

    def kernel(
        self, name: str, optimizer: FusedConfig, sharding: ParameterSharding, *, trained: bool
    ) -> KernelConfig:
        """Return the kernel of a table: the plan's settings, else the sharder's."""
        cache, options = sharding.cache_params, dict(self.cache)
        load_factor = self.cache_load_factor
        if cache is not None:
            load_factor = cache.load_factor or load_factor
            of_plan = {
                "cache_algorithm": cache.algorithm,
                "cache_reserved_memory": cache.reserved_memory,
                "cache_precision": cache.precision,
                "prefetch_pipeline": cache.prefetch_pipeline,
                "multipass_prefetch_config": cache.multipass_prefetch_config,
            }
            options |= {key: _for_fbgemm(value) for key, value in of_plan.items() if value is not None}
        if sharding.enforce_hbm is not None:
            options["enforce_hbm"] = sharding.enforce_hbm
        if sharding.stochastic_rounding is not None:
            optimizer = replace(optimizer, stochastic_rounding=sharding.stochastic_rounding)
        return KernelConfig(
            name=name,
            fused=optimizer,
            cache_load_factor=load_factor,
            trained=trained,
            cache_options=tuple(sorted(options.items())),
        )

    def bounds_check_mode(self, params: Mapping[str, ParameterSharding]) -> BoundsCheckMode:
        """Return how IDs outside their tables are treated, in one collection.

        Raises:
            PlanError: The plan's tables differ.
        """
        modes = {
            self.bounds if sharding.bounds_check_mode is None else _mode(sharding.bounds_check_mode)
            for sharding in params.values()
        }
        if len(modes) > 1:
            raise PlanError(
                f"bounds_check_mode: got {sorted(mode.name for mode in modes)} in one collection, expected one for "
                "all its tables"
            )
        return modes.pop() if modes else self.bounds


def _mode(mode: Any) -> BoundsCheckMode:
    """Return ours of FBGEMM's, or ours."""
    name = str(getattr(mode, "name", mode)).removeprefix("V2_")
    if name not in _FBGEMM_MODES:
        raise ValueError(f"bounds_check_mode: got {mode!r}, expected one of {list(_FBGEMM_MODES)}")
    return _FBGEMM_MODES[name]


def _for_fbgemm(value: Any) -> Any:
    return _PRECISIONS.get(value, value) if isinstance(value, DataType) else value
