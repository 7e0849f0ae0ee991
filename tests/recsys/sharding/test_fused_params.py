"""The settings of lookups: a sharder's, and those of a plan's tables, which come first."""

from __future__ import annotations

from typing import Any

import pytest
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode as FbgemmMode

from recsys.configs import DataType
from recsys.errors import PlanError
from recsys.kernels.bounds import BoundsCheckMode
from recsys.optim import FusedConfig
from recsys.sharding.fused_params import FusedParams
from recsys.sharding.plan.kinds import CacheParams
from recsys.sharding.plan.plan import ParameterSharding
from recsys.sharding.sharders import EmbeddingBagCollectionSharder


def of(**params: Any) -> FusedParams:
    return FusedParams.of({"cache_load_factor": 0.2, **params})


def test_the_optimizer_and_the_cache_are_parted() -> None:
    params = of(
        learning_rate=0.5,
        cache_load_factor=0.3,
        prefetch_pipeline=True,
        cache_precision=DataType.FP16,
        bounds_check_mode=FbgemmMode.V2_IGNORE,
        output_dtype=SparseType.FP32,
    )
    assert params.optimizer == FusedConfig(learning_rate=0.5)
    assert params.cache_load_factor == 0.3
    assert params.cache == {"prefetch_pipeline": True, "cache_precision": SparseType.FP16}
    assert params.bounds is BoundsCheckMode.IGNORE
    sharder = EmbeddingBagCollectionSharder({"learning_rate": 0.5, "cache_load_factor": 0.1})
    assert sharder.fused_params == {"learning_rate": 0.5, "cache_load_factor": 0.1}
    assert sharder.fused_config.learning_rate == 0.5


def test_a_tables_settings_come_first() -> None:
    sharding = ParameterSharding(
        "table_wise",
        "fused_uvm_caching",
        cache_params=CacheParams(load_factor=0.5, prefetch_pipeline=False, reserved_memory=8.0),
        enforce_hbm=True,
        stochastic_rounding=False,
    )
    params = of(prefetch_pipeline=True)
    kernel = params.kernel("fused_uvm_caching", params.optimizer, sharding, trained=True)
    assert kernel.cache_load_factor == 0.5
    assert dict(kernel.cache_options) == {
        "cache_reserved_memory": 8.0,
        "enforce_hbm": True,
        "prefetch_pipeline": False,
    }
    assert kernel.fused is not None
    assert not kernel.fused.stochastic_rounding
    plain = params.kernel("fused", params.optimizer, ParameterSharding("table_wise", "fused"), trained=True)
    assert (plain.cache_load_factor, dict(plain.cache_options)) == (0.2, {"prefetch_pipeline": True})


def test_ids_of_a_collection_are_treated_alike() -> None:
    warns = ParameterSharding("table_wise", "fused", bounds_check_mode=FbgemmMode.WARNING)
    unsaid = ParameterSharding("table_wise", "fused")
    assert of().bounds_check_mode({"a": warns}) is BoundsCheckMode.WARNING
    assert of(bounds_check_mode=FbgemmMode.NONE).bounds_check_mode({"a": unsaid}) is BoundsCheckMode.FATAL
    with pytest.raises(PlanError, match=r"got \['FATAL', 'WARNING'\] in one collection"):
        of().bounds_check_mode({"a": warns, "b": unsaid})


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"cache_load_factor": 0.0}, "cache_load_factor.*expected above 0"),
        ({"output_dtype": SparseType.FP16}, "output_dtype.*expected FP32"),
        ({"bounds_check_mode": "often"}, "bounds_check_mode: got 'often'"),
        ({"lr": 0.1}, "unknown keys"),
    ],
)
def test_what_is_wrong_is_said(params: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        of(**params)
