"""Shards and their memory, for planners that list options themselves, beside TorchRec's.

Shape letters: D embedding dimension, R rows.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import recsys
from recsys.as_torchrec.planner import shard_sizes as ours
from recsys.as_torchrec.planner.sharder_data import build_sharder_data_map
from recsys.as_torchrec.planner.steps import GUARDED_COMPUTE_KERNELS
from tests.peer.torchrec_peer import torchrec

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]

TYPES = [
    "data_parallel",
    "table_wise",
    "row_wise",
    "table_row_wise",
    "column_wise",
    "table_column_wise",
    "grid_shard",
]


@pytest.mark.parametrize("sharding_type", TYPES)
@pytest.mark.parametrize(("num_rows", "dim"), [(10, 64), (5, 128), (1000, 256), (3, 96), (7, 12), (16, 130)])
@pytest.mark.parametrize("width", [None, 16, 32])
def test_tables_are_cut_as_torchrec_cuts_them(
    sharding_type: str, num_rows: int, dim: int, width: int | None
) -> None:
    from torchrec.distributed.sharding_plan import calculate_shard_sizes_and_offsets

    table = torch.empty(num_rows, dim, device="meta")
    expected = calculate_shard_sizes_and_offsets(table, 4, 2, sharding_type, width)
    assert ours.calculate_shard_sizes_and_offsets(table, 4, 2, sharding_type, width) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"num_buckets": 5},
        {"num_buckets": 10},
        {"device_memory_sizes": [1, 2, 3, 4]},
        {"device_memory_sizes": [5, 1, 1, 1], "num_buckets": 20},
    ],
)
def test_rows_in_buckets_and_by_memory(options: dict[str, Any]) -> None:
    from torchrec.distributed.sharding_plan import calculate_shard_sizes_and_offsets

    table = torch.empty(100, 8, device="meta")
    expected = calculate_shard_sizes_and_offsets(table, 4, 2, "row_wise", **options)
    assert ours.calculate_shard_sizes_and_offsets(table, 4, 2, "row_wise", **options) == expected


def storages(m: Any, sharding_type: str, kernel: str, device: str, is_inference: bool) -> list[Any]:
    table = torch.empty(4000, 64, device="meta")
    if m is recsys:
        calculate: Any = ours.calculate_shard_storages
        data: Any = build_sharder_data_map({"s": recsys.EmbeddingBagCollectionSharder()})
    else:
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.planner import shard_estimators, utils

        calculate = shard_estimators.calculate_shard_storages
        data = utils.build_sharder_data_map({"s": EmbeddingBagCollectionSharder()})
    sizes, _ = ours.calculate_shard_sizes_and_offsets(table, 4, 2, sharding_type)
    return calculate(
        sharder_data=data["s"],
        sharding_type=sharding_type,
        tensor=table,
        compute_device=device,
        compute_kernel=kernel,
        shard_sizes=sizes,
        batch_sizes=[8, 8],
        world_size=4,
        local_world_size=2,
        input_lengths=[3.0, 1.0],
        num_poolings=[1.0, 1.0],
        caching_ratio=0.25,
        is_pooled=True,
        input_data_type_size=8,
        output_data_type_size=4,
        is_inference=is_inference,
    )


@pytest.mark.parametrize("sharding_type", TYPES)
@pytest.mark.parametrize(
    ("device", "kernel"),
    [("cpu", "fused"), ("cuda", "fused"), ("cuda", "fused_uvm"), ("cuda", "fused_uvm_caching")],
)
def test_rows_take_the_same_memory(sharding_type: str, device: str, kernel: str) -> None:
    expected = [(s.hbm, s.ddr) for s in storages(torchrec, sharding_type, kernel, device, True)]
    assert [(s.hbm, s.ddr) for s in storages(recsys, sharding_type, kernel, device, True)] == expected


@pytest.mark.parametrize("sharding_type", TYPES[1:])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_training_takes_nearly_the_same(sharding_type: str, device: str) -> None:
    found = storages(recsys, sharding_type, "fused", device, False)
    expected = storages(torchrec, sharding_type, "fused", device, False)
    for one, peer in zip(found, expected, strict=True):
        assert one.hbm + one.ddr == pytest.approx(peer.hbm + peer.ddr, rel=0.1)


@pytest.mark.parametrize("precision", ["FP32", "FP16"])
def test_the_settings_of_sharders(precision: str) -> None:
    from torchrec.distributed import fbgemm_qcomm_codec as theirs
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import utils

    from recsys.sharding.transport import quantized_comms as codecs

    def sharder(kind: Any, m: Any) -> Any:
        type_of = m.CommType
        config = m.QCommsConfig(forward_precision=type_of[precision], backward_precision=type_of["FP32"])
        return kind({"learning_rate": 0.5}, m.get_qcomm_codecs_registry(config))

    found = build_sharder_data_map({"a": sharder(recsys.EmbeddingBagCollectionSharder, codecs)})["a"]
    expected = utils.build_sharder_data_map({"a": sharder(EmbeddingBagCollectionSharder, theirs)})["a"]
    assert found.fused_params == expected.fused_params
    assert found.qcomm_dtype_sizes == expected.qcomm_dtype_sizes
    assert found.storage_usage_type.name == expected.storage_usage_type.name


def test_guarded_kernels() -> None:
    from torchrec.distributed.planner.enumerators import GUARDED_COMPUTE_KERNELS as THEIRS

    assert {kernel.value for kernel in GUARDED_COMPUTE_KERNELS} == {kernel.value for kernel in THEIRS}
