"""Sharded collections: trained weights arrive, placement changes nothing, row-wise means are right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from recsys import DataType, EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.errors import PlanError
from recsys.inputs.signature import IdPolicy
from recsys.quant import QuantEmbeddingBagCollection, QuantEmbeddingCollection
from recsys.rows.format import RowFormat
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.plan import ParameterSharding, ShardMetadata
from recsys.sharding.plan.sharding_types import column_wise, row_wise, table_wise
from recsys.sharding.sharded import DistributedKeyedJaggedTensor, ShardedOptions
from recsys.sharding.transport.local import send
from tests.support.helpers import STORED_TYPES, bag, kjt_of, outputs_of, rounding, sequence

TABLES = [
    bag("t", 30, 64, ["a", "b"]),
    bag("u", 20, 40, ["c", "a"], "MEAN"),
    bag("v", 10, 16, ["b"]),
]
ROWS = [sequence("t", 30, 24, ["a", "b"]), sequence("u", 20, 24, ["c", "a"])]
BATCH = kjt_of(
    {
        "c": [[0, 19, 10], [], [7, 7], [19]],
        "a": [[1, 2], [19, 0, 10], [], [5]],
        "b": [[9], [0, 4, 9, 5], [1], []],
    }
)
CUTS: dict[str, Callable[..., ParameterSharding]] = {
    "table": lambda table, ranks: table_wise(table, ranks[-1]),
    "column": column_wise,
    "row": row_wise,
}
RANKS = [[0], [1, 0], [0, 1], [2, 0, 1], [0, 2]]


def constant(module: EmbeddingBagCollection | EmbeddingCollection) -> None:
    """Row r of the k-th table holds 100 k + r, a number that every row type holds exactly."""
    for k, weight in enumerate(module.parameters()):
        with torch.no_grad():
            weight.copy_((100.0 * k + torch.arange(weight.shape[0])).unsqueeze(1).expand_as(weight))


def pooled(weighted: bool = False) -> EmbeddingBagCollection:
    torch.manual_seed(4)
    return EmbeddingBagCollection(TABLES, is_weighted=weighted)


def quantized(weighted: bool = False) -> QuantEmbeddingBagCollection:
    kinds = {"u": DataType.INT4, "v": DataType.FP16}
    return QuantEmbeddingBagCollection.from_float(pooled(weighted), table_data_types=kinds)


def env_of(ranks: list[int]) -> ShardingEnv:
    return ShardingEnv.over_devices(["cpu"] * (max(ranks) + 1))


@pytest.mark.parametrize("kind", STORED_TYPES, ids=lambda k: k.name)
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
class TestTrainedWeightsAreCarriedOver:
    def test_pooled(self, cut: Callable[..., ParameterSharding], kind: DataType) -> None:
        tables = [bag("t", 9, 16, ["a"]), bag("u", 9, 16, ["b"], "MEAN")]
        module = EmbeddingBagCollection(tables)
        constant(module)
        made = QuantEmbeddingBagCollection.from_float(module, data_type=kind)
        sharded = made.shard({t.name: cut(t, [1, 0]) for t in tables}, env_of([0, 1]))
        answer = sharded(kjt_of({"a": [[3], [8, 1], []], "b": [[0], [8, 2], []]}))
        assert answer["a"][:, 0].tolist() == [3, 9, 0]
        assert answer["b"][:, 15].tolist() == [100, 105, 0]
        assert torch.equal(answer["a"], answer["a"][:, :1].expand(-1, 16))

    def test_sequences(self, cut: Callable[..., ParameterSharding], kind: DataType) -> None:
        module = EmbeddingCollection(ROWS)
        constant(module)
        made = QuantEmbeddingCollection.from_float(module, data_type=kind)
        sharded = made.shard({t.name: cut(t, [2, 0]) for t in ROWS}, env_of([0, 2]))
        answer = sharded(BATCH)
        assert answer["b"].values()[:, 0].tolist() == [9, 0, 4, 9, 5, 1]
        assert answer["a@u"].values()[:, 23].tolist() == [101, 102, 119, 100, 110, 105]
        assert [row.shape[0] for row in answer["a@t"].to_dense()] == [2, 3, 0, 1]


@pytest.mark.parametrize("ranks", RANKS, ids=str)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
class TestPooled:
    def test_placement_alone_changes_no_bit(self, ranks: list[int], weighted: bool) -> None:
        batch = weighted_batch() if weighted else BATCH
        module = quantized(weighted)
        expected = module(batch)
        for plan in (
            {t.name: table_wise(t, ranks[i % len(ranks)]) for i, t in enumerate(TABLES)},
            {t.name: column_wise(t, ranks[: t.embedding_dim // 8]) for t in TABLES[:2]}
            | {"v": column_wise(TABLES[2], ranks[:2])},
        ):
            answer = module.shard(plan, env_of(ranks))(batch)
            assert answer.keys() == expected.keys() == ["a@t", "b@t", "c", "a@u", "b@v"]
            assert torch.equal(answer.values(), expected.values())

    def test_row_wise_is_right_within_rounding(self, ranks: list[int], weighted: bool) -> None:
        batch = weighted_batch() if weighted else BATCH
        module = quantized(weighted)
        sharded = module.shard({t.name: row_wise(t, ranks) for t in TABLES}, env_of(ranks))
        atol = rounding(module.dequantize(), batch)
        torch.testing.assert_close(sharded(batch).values(), module(batch).values(), rtol=0, atol=atol)


def weighted_batch() -> KeyedJaggedTensor:
    weights = 0.5 + torch.arange(BATCH.values().numel()) / 8
    return KeyedJaggedTensor(BATCH.keys(), BATCH.values(), weights, BATCH.lengths())


def test_a_mean_over_shards_is_the_mean_of_the_bag() -> None:
    table = bag("t", 9, 8, ["a"], "MEAN")
    module = EmbeddingBagCollection([table])
    constant(module)
    made = QuantEmbeddingBagCollection.from_float(module, data_type=DataType.FP32)
    sharded = made.shard({"t": row_wise(table, [2, 1, 0])}, env_of([2]))
    answer = sharded(kjt_of({"a": [[0, 4, 8], [8, 8, 2], [0, 1], [], [7]]}))
    assert answer["a"][:, 3].tolist() == [4, 6, 0.5, 0, 7]


def test_shards_of_different_sizes_in_any_order() -> None:
    table = bag("t", 30, 64, ["a", "b"])
    rectangles = [(20, 10, 1), (0, 3, 2), (3, 17, 0)]
    shards = tuple(
        ShardMetadata(shard_offsets=(row, 0), shard_sizes=(rows, 64), rank=rank)
        for row, rows, rank in rectangles
    )
    plan = {
        "t": ParameterSharding(sharding_type="row_wise", shards=shards),
        "u": table_wise(TABLES[1], 2),
        "v": row_wise(TABLES[2], [1, 2]),
    }
    module = quantized()
    assert table == TABLES[0]
    atol = rounding(module.dequantize(), BATCH)
    answer = module.shard(plan, env_of([2]))(BATCH)
    torch.testing.assert_close(answer.values(), module(BATCH).values(), rtol=0, atol=atol)


def test_rows_and_columns_cut_at_once() -> None:
    shards = tuple(
        ShardMetadata(shard_offsets=(row, column), shard_sizes=(15, 32), rank=rank)
        for row, column, rank in ((0, 0, 0), (15, 0, 1), (0, 32, 2), (15, 32, 0))
    )
    plan = {
        "t": ParameterSharding(sharding_type="row_wise", shards=shards),
        "u": table_wise(TABLES[1], 1),
        "v": table_wise(TABLES[2], 2),
    }
    module = quantized()
    answer = module.shard(plan, env_of([2]))(BATCH).values()
    torch.testing.assert_close(
        answer, module(BATCH).values(), rtol=0, atol=rounding(module.dequantize(), BATCH)
    )


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("ranks", RANKS, ids=str)
def test_sequences_are_bit_equal_however_they_are_cut(
    cut: Callable[..., ParameterSharding], ranks: list[int]
) -> None:
    torch.manual_seed(1)
    module = QuantEmbeddingCollection.from_float(
        EmbeddingCollection(ROWS), table_data_types={"u": DataType.INT4}
    )
    sharded = module.shard({t.name: cut(t, ranks) for t in ROWS}, env_of(ranks))
    expected, answer = module(BATCH), sharded(BATCH)
    assert list(answer) == list(expected)
    for name, jagged in answer.items():
        assert torch.equal(jagged.values(), expected[name].values())
        assert torch.equal(jagged.lengths(), expected[name].lengths())
    assert sharded.embedding_dim() == 24


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_an_empty_batch_and_missing_features(cut: Callable[..., ParameterSharding]) -> None:
    sharded = quantized().shard({t.name: cut(t, [1, 0]) for t in TABLES}, env_of([1]))
    assert sharded(kjt_of({"a": [], "b": [], "c": []})).values().shape == (0, 64 + 64 + 40 + 40 + 16)
    assert not sharded(kjt_of({"a": [[], []], "b": [[], []], "c": [[], []]})).values().any()
    with pytest.raises(ValueError, match=r"features: missing \['c'\], got \['b', 'a'\]"):
        sharded(kjt_of({"b": [[1]], "a": [[1]]}))


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_features_in_any_order(cut: Callable[..., ParameterSharding]) -> None:
    sharded = quantized().shard({t.name: cut(t, [1, 0]) for t in TABLES}, env_of([1]))
    expected = sharded(BATCH).values()
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        assert torch.equal(sharded(BATCH.permute(order)).values(), expected)


def test_column_cuts_of_the_true_dim_not_of_padded_rows() -> None:
    """Rows of 64 INT8 numbers take 80 bytes on CUDA; the output stays 64 wide."""
    table = bag("t", 10, 64, ["a"])
    module = QuantEmbeddingBagCollection.from_float(EmbeddingBagCollection([table]), row_alignment=16)
    assert module.state_dict()["embedding_bags.t.weight"].shape == (10, 80)
    sharded = module.shard({"t": column_wise(table, [0, 1])}, env_of([1]))
    answer = sharded(kjt_of({"a": [[1, 2], [3]]})).values()
    assert answer.shape == (2, 64)
    assert torch.equal(answer, module(kjt_of({"a": [[1, 2], [3]]})).values())


def test_cuts_that_the_row_type_does_not_allow() -> None:
    table = bag("t", 10, 20, ["a"])
    shards = tuple(ShardMetadata(shard_offsets=(0, start), shard_sizes=(10, 10), rank=0) for start in (0, 10))
    module = QuantEmbeddingBagCollection.from_float(EmbeddingBagCollection([table]), data_type=DataType.INT4)
    with pytest.raises(
        PlanError, match=r"table 't': got columns cut at 0:10, expected multiples of 4 for INT4"
    ):
        module.shard({"t": ParameterSharding(sharding_type="column_wise", shards=shards)}, env_of([0]))


def test_rows_in_host_memory_are_shared_not_copied() -> None:
    module = quantized()
    whole = module.sharded.lookups[0].rows.data_ptr()
    sharded = module.shard({t.name: table_wise(t, i) for i, t in enumerate(TABLES)}, env_of([2]))
    assert {lookup.rows.data_ptr() for lookup in sharded.lookups} == {whole}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("devices", [["meta", "meta"], ["meta", "cpu"], ["cpu", "meta"]], ids=",".join)
class TestDevicesThatOnlyKnowShapes:
    """``meta`` takes the road of ``cuda``: rows copied shard by shard, a packed batch, outputs gathered."""

    def test_pooled(self, cut: Callable[..., ParameterSharding], devices: list[str]) -> None:
        sharded = quantized(True).shard(
            {t.name: cut(t, [1, 0]) for t in TABLES}, ShardingEnv.over_devices(devices)
        )
        if "cpu" in devices and devices[0] == "cpu":
            pytest.skip("what meta holds cannot come back to the host")
        answer = sharded(weighted_batch())
        assert answer.values().device.type == "meta"
        assert answer.values().shape == (4, 64 + 64 + 40 + 40 + 16)

    def test_rows_are_those_of_the_ranks_own_shards(
        self, cut: Callable[..., ParameterSharding], devices: list[str]
    ) -> None:
        plan = {t.name: cut(t, [1, 0]) for t in TABLES}
        sharded = quantized().shard(plan, ShardingEnv.over_devices(devices))
        kinds = {"t": DataType.INT8, "u": DataType.INT4, "v": DataType.FP16}
        for rank, device in enumerate(devices):
            if device != "meta":
                continue
            least = sum(
                RowFormat(data_type=kinds[name], dim=shard.shard_sizes[1]).row_bytes() * shard.shard_sizes[0]
                for name, sharding in plan.items()
                for shard in sharding.shards
                if shard.rank == rank
            )
            held = {
                lookup.rows.numel()
                for lookup, group in zip(sharded.lookups, sharded.layout.groups, strict=True)
                if group.rank == rank
            }
            assert all(least <= num_bytes <= least + 128 * (len(plan) + 1) for num_bytes in held)


def test_sequences_on_a_device_that_only_knows_shapes() -> None:
    module = QuantEmbeddingCollection.from_float(EmbeddingCollection(ROWS))
    plan = {t.name: table_wise(t, i) for i, t in enumerate(ROWS)}
    answer = module.shard(plan, ShardingEnv.over_devices(["meta", "meta"]))(BATCH)
    assert {name: tuple(jt.values().shape) for name, jt in answer.items()} == {
        "a@t": (6, 24),
        "b": (6, 24),
        "c": (6, 24),
        "a@u": (6, 24),
    }


def test_parts_that_were_sent_for_the_whole_model_are_taken_as_they_are() -> None:
    first, second = (
        quantized().shard({t.name: row_wise(t, [0, 1]) for t in TABLES}, env_of([1])) for _ in "ab"
    )
    inputs = {module: module.split(BATCH) for module in (first, second)}
    send([(split, m.layout, m.needs_lengths) for m, split in inputs.items()], [], [torch.device("cpu")] * 2)
    sent = DistributedKeyedJaggedTensor(BATCH, inputs)
    for module in (first, second):
        assert torch.equal(module(sent).values(), module(BATCH).values())
    other = quantized()
    assert torch.equal(other(sent).values(), other(BATCH).values())


def test_id_policies_hold_where_rows_are_cut() -> None:
    options = ShardedOptions(id_policies={"t": IdPolicy.ZERO, "u": IdPolicy.HASH})
    module = QuantEmbeddingBagCollection.from_float(pooled(), options=options)
    strange = kjt_of({"c": [[25, -1]], "a": [[31, 1]], "b": [[-7, 3]]})
    with pytest.raises(ValueError, match="feature 'b@v' got ID -7 "):
        module(strange)
    strange = kjt_of({"c": [[25, -1]], "a": [[31, 1]], "b": [[3]]})
    for ranks in RANKS:
        sharded = module.shard({t.name: row_wise(t, ranks) for t in TABLES}, env_of(ranks))
        for name, answer in outputs_of(sharded(strange)).items():
            torch.testing.assert_close(answer, module(strange)[name])
