"""Quantized collections: the float module is the oracle, the rows' own scales give the tolerance."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from recsys import DataType, EmbeddingBagCollection, EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from recsys.configs import QuantConfig
from recsys.embedding import EmbeddingBagCollectionInterface, EmbeddingCollectionInterface
from recsys.errors import PlanError
from recsys.inputs.signature import IdPolicy
from recsys.quant import QuantEmbeddingBagCollection, QuantEmbeddingCollection
from recsys.rows.format import RowFormat, dequantize_rows, quantize_rows, row_error_bounds
from recsys.scripting.tracer import symbolic_trace
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.sharding_types import table_wise
from recsys.sharding.sharded import ShardedOptions
from tests.support.helpers import STORED_TYPES, bag, kjt_of, rounding, sequence

TABLES = [
    bag("t", 50, 64, ["a"]),
    bag("u", 30, 63, ["b", "a"], "MEAN"),
    bag("v", 20, 10, ["c"]),
    bag("w", 20, 16, ["d"], "MEAN"),
    bag("x", 20, 1, ["e"]),
]
MIXED = {"t": DataType.INT8, "u": DataType.INT4, "v": DataType.FP16, "w": DataType.INT2, "x": DataType.FP32}
BATCH = kjt_of(
    {
        "a": [[1, 2, 29], [], [5]],
        "b": [[3], [0, 4], []],
        "c": [[], [4, 4], [19]],
        "d": [[1, 2, 3], [4], [5]],
        "e": [[0], [1], [2, 3]],
    }
)


def float_collection(weighted: bool = False) -> EmbeddingBagCollection:
    torch.manual_seed(2)
    made = EmbeddingBagCollection(TABLES, is_weighted=weighted)
    for weight in made.parameters():
        torch.nn.init.normal_(weight)
    return made


def error_bound(module: EmbeddingBagCollection, kinds: dict[str, DataType]) -> dict[str, Tensor]:
    """For each table, how far a sum over the batch's largest bag can lie off."""
    most_ids = int(BATCH.lengths().max())
    bounds = {}
    for name, weight in module.state_dict().items():
        kind = kinds[name.split(".")[1]]
        fmt = RowFormat(data_type=kind, dim=weight.shape[1])
        bounds[name.split(".")[1]] = row_error_bounds(quantize_rows(weight, kind), fmt).max() * most_ids
    return bounds


ALL = {kind.name: dict.fromkeys("tuvwx", kind) for kind in STORED_TYPES} | {"mixed": MIXED}


@pytest.mark.parametrize("kinds", ALL.values(), ids=ALL)
def test_predictions_stay_within_what_the_rows_own_scales_imply(kinds: dict[str, DataType]) -> None:
    module = float_collection()
    expected = module(BATCH)
    answer = QuantEmbeddingBagCollection.from_float(module, table_data_types=kinds)(BATCH)
    assert answer.keys() == expected.keys() == ["a@t", "b", "a@u", "c", "d", "e"]
    assert answer.values().shape == expected.values().shape
    bounds = error_bound(module, kinds)
    for name, table in zip(answer.keys(), ["t", "u", "u", "v", "w", "x"], strict=True):
        off = (answer[name] - expected[name]).abs().max()
        assert off <= bounds[table] + rounding(module, BATCH), name
        if kinds[table] is not DataType.FP32:
            assert off > 0, name


def test_dequantized_collections_predict_the_same() -> None:
    quantized = QuantEmbeddingBagCollection.from_float(float_collection(), table_data_types=MIXED)
    back = quantized.dequantize()
    assert isinstance(back, EmbeddingBagCollection)
    assert [c.data_type for c in back.embedding_bag_configs()] == [DataType.FP32] * 5
    atol = rounding(back, BATCH)
    torch.testing.assert_close(back(BATCH).values(), quantized(BATCH).values(), rtol=0, atol=atol)


def test_the_state_dict_holds_the_rows_under_the_tables_names() -> None:
    module = float_collection()
    quantized = QuantEmbeddingBagCollection.from_float(module, table_data_types=MIXED)
    state = quantized.state_dict()
    assert set(state) == {f"embedding_bags.{name}.weight" for name in "tuvwx"}
    for name, kind in MIXED.items():
        rows = state[f"embedding_bags.{name}.weight"]
        weight = module.state_dict()[f"embedding_bags.{name}.weight"]
        assert rows.dtype == torch.uint8
        assert torch.equal(rows, quantize_rows(weight, kind))


@pytest.mark.parametrize("alignment", [1, 16])
def test_rows_at_any_alignment_predict_the_same(alignment: int) -> None:
    module = float_collection()
    packed = QuantEmbeddingBagCollection.from_float(module, table_data_types=MIXED)
    aligned = QuantEmbeddingBagCollection.from_float(module, table_data_types=MIXED, row_alignment=alignment)
    assert torch.equal(packed(BATCH).values(), aligned(BATCH).values())
    rows = aligned.state_dict()["embedding_bags.t.weight"]
    assert rows.shape == (50, {1: 68, 16: 80}[alignment])


def test_the_trained_module_stays_as_it_is() -> None:
    module = float_collection()
    before, answer = copy.deepcopy(module.state_dict()), module(BATCH).values()
    quantized = QuantEmbeddingBagCollection.from_float(module)
    quantized(BATCH)
    assert type(module) is EmbeddingBagCollection
    assert [c.data_type for c in module.embedding_bag_configs()] == [DataType.FP32] * 5
    assert all(torch.equal(w, before[name]) for name, w in module.state_dict().items())
    assert torch.equal(module(BATCH).values(), answer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_output_types(dtype: torch.dtype) -> None:
    module = float_collection()
    options = ShardedOptions(output_dtype=dtype)
    answer = QuantEmbeddingBagCollection.from_float(module, table_data_types=MIXED, options=options)(BATCH)
    assert answer.values().dtype == dtype
    expected = QuantEmbeddingBagCollection.from_float(module, table_data_types=MIXED)(BATCH).values()
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(answer.values().float(), expected, rtol=unit, atol=unit)


def test_weighted_sums_and_means() -> None:
    module = float_collection(weighted=True)
    quantized = QuantEmbeddingBagCollection.from_float(module, table_data_types=MIXED)
    weights = torch.rand(BATCH.values().numel()) * 3
    batch = KeyedJaggedTensor(BATCH.keys(), BATCH.values(), weights, BATCH.lengths())
    expected = quantized.dequantize()
    atol = rounding(expected, batch)
    torch.testing.assert_close(quantized(batch).values(), expected(batch).values(), rtol=0, atol=atol)
    with pytest.raises(ValueError, match="weights: this KeyedJaggedTensor has none"):
        quantized(BATCH)


@pytest.mark.parametrize("kinds", [{}, {"s": DataType.INT4, "r": DataType.FP16}], ids=["int8", "mixed"])
@pytest.mark.parametrize("dim", [16, 7])
def test_sequences(kinds: dict[str, DataType], dim: int) -> None:
    module = EmbeddingCollection([sequence("s", 50, dim, ["a", "b"]), sequence("r", 30, dim, ["a"])])
    quantized = QuantEmbeddingCollection.from_float(module, table_data_types=kinds)
    expected, answer = quantized.dequantize()(BATCH), quantized(BATCH)
    assert list(answer) == ["a@s", "b", "a@r"]
    for name, jagged in answer.items():
        assert jagged.values().shape == expected[name].values().shape
        torch.testing.assert_close(
            jagged.values(), expected[name].values(), rtol=0, atol=rounding(quantized.dequantize(), BATCH)
        )
        assert torch.equal(jagged.lengths(), expected[name].lengths())
    rows = quantized.state_dict()["embeddings.r.weight"]
    fmt = RowFormat(data_type=kinds.get("r", DataType.INT8), dim=dim)
    assert torch.equal(dequantize_rows(rows, fmt), quantized.dequantize().state_dict()["embeddings.r.weight"])


def test_the_answer_does_not_depend_on_the_order_of_features() -> None:
    quantized = QuantEmbeddingBagCollection.from_float(float_collection(), table_data_types=MIXED)
    expected = quantized(BATCH).values()
    for order in ([4, 3, 2, 1, 0], [2, 0, 4, 1, 3], [0, 1, 2, 3, 4]):
        assert torch.equal(quantized(BATCH.permute(order)).values(), expected)


def test_an_empty_batch_and_empty_bags() -> None:
    quantized = QuantEmbeddingBagCollection.from_float(float_collection())
    assert quantized(kjt_of({key: [] for key in "abcde"})).values().shape == (0, 64 + 63 + 63 + 10 + 16 + 1)
    assert not quantized(kjt_of({key: [[], []] for key in "abcde"})).values().any()


WRONG: list[tuple[str, Callable[[], object], str]] = [
    (
        "unknown table",
        lambda: QuantEmbeddingBagCollection.from_float(
            float_collection(), table_data_types={"z": DataType.INT8}
        ),
        r"table_data_types: got unknown tables \['z'\]",
    ),
    (
        "missing feature",
        lambda: QuantEmbeddingBagCollection.from_float(float_collection())(kjt_of({"a": [[1]]})),
        r"features: missing \['b', 'c', 'd', 'e'\], got \['a'\]",
    ),
    (
        "row type",
        lambda: QuantEmbeddingBagCollection.from_float(float_collection(), data_type=DataType.BF16),
        "data_type: got BF16",
    ),
]


@pytest.mark.parametrize(("use", "message"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_wrong_use_is_named(use: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        use()


def test_a_row_of_zeros_for_the_zero_policy_is_not_in_the_state_dict() -> None:
    options = ShardedOptions(id_policies={"t": IdPolicy.ZERO})
    quantized = QuantEmbeddingBagCollection.from_float(float_collection(), options=options)
    assert quantized.state_dict()["embedding_bags.t.weight"].shape == (50, 68)
    assert quantized.dequantize().state_dict()["embedding_bags.t.weight"].shape == (50, 64)


def observer(dtype: torch.dtype) -> Callable[[], SimpleNamespace]:
    """What a ``qconfig`` holds: something that is called and has a dtype."""
    return lambda: SimpleNamespace(dtype=dtype)


class TestConfigOfTheModule:
    def test_says_the_types_of_rows_and_outputs(self) -> None:
        module = float_collection()
        per_table = {"u": torch.quint2x4, "v": torch.float32}
        types = QuantConfig(observer(torch.float16), observer(torch.quint4x2), per_table)
        module.qconfig = types
        made = QuantEmbeddingBagCollection.from_float(module)
        found = {table.name: table.data_type for table in made.embedding_bag_configs()}
        four = DataType.INT4
        assert found == {"t": four, "u": DataType.INT2, "v": DataType.FP32, "w": four, "x": four}
        assert (made.output_dtype(), made(BATCH).values().dtype) == (torch.float16, torch.float16)
        assert made.state_dict()["embedding_bags.t.weight"].shape == (50, 4 + 32)

    def test_arguments_come_first(self) -> None:
        module = float_collection()
        module.qconfig = QuantConfig(observer(torch.float16), observer(torch.quint4x2), {"u": torch.float32})
        made = QuantEmbeddingBagCollection.from_float(
            module, data_type=DataType.INT8, table_data_types={"x": DataType.FP16}, options=ShardedOptions()
        )
        found = [table.data_type for table in made.embedding_bag_configs()]
        assert found == [DataType.INT8] * 4 + [DataType.FP16]
        assert made.output_dtype() == torch.float32

    def test_of_a_sequence_collection(self) -> None:
        module = EmbeddingCollection([sequence("t", 50, 16, ["a"])])
        module.qconfig = QuantConfig(observer(torch.float16), observer(torch.float16))
        made = QuantEmbeddingCollection.from_float(module)
        assert made.embedding_configs()[0].data_type is DataType.FP16
        assert made(BATCH)["a"].values().dtype == torch.float16

    def test_of_an_unknown_type_is_refused(self) -> None:
        module = float_collection()
        module.qconfig = QuantConfig(observer(torch.float32), observer(torch.float64))
        with pytest.raises(ValueError, match=r"dtype: got torch.float64, expected one of"):
            QuantEmbeddingBagCollection.from_float(module)


def test_ids_come_with_the_rows_if_they_are_needed() -> None:
    module = EmbeddingCollection(
        [sequence("t", 50, 16, ["a", "b"]), sequence("u", 50, 16, ["a"])], need_indices=True
    )
    made = QuantEmbeddingCollection.from_float(module)
    assert made.need_indices()
    assert made.dequantize().need_indices()
    for answer in (module(BATCH), made(BATCH)):
        assert list(answer) == ["a@t", "b", "a@u"]
        assert {name: rows.weights().tolist() for name, rows in answer.items()} == {
            "a@t": [1, 2, 29, 5],
            "b": [3, 0, 4],
            "a@u": [1, 2, 29, 5],
        }


def test_sharded_rows_come_without_their_ids() -> None:
    table = sequence("t", 50, 16, ["a"])
    module = EmbeddingCollection([table], need_indices=True)
    made = QuantEmbeddingCollection.from_float(module)
    with pytest.raises(PlanError, match="need_indices: got True, expected False"):
        made.shard({"t": table_wise(table, 0)}, ShardingEnv.over_devices(["cpu"]))


def test_the_tables_are_told() -> None:
    bags, rows = float_collection(True), EmbeddingCollection([sequence("t", 50, 16, ["a"])])
    quantized = QuantEmbeddingBagCollection.from_float(bags)
    assert quantized.is_weighted()
    assert isinstance(quantized, EmbeddingBagCollectionInterface)
    assert quantized.device.type == "cpu"
    sequences = QuantEmbeddingCollection.from_float(rows)
    assert isinstance(sequences, EmbeddingCollectionInterface)
    assert (sequences.embedding_dim(), sequences.embedding_names_by_table()) == (16, [["a"]])


@pytest.mark.parametrize("need_indices", [False, True])
def test_a_collection_is_traced_as_the_whole_model(need_indices: bool) -> None:
    table = EmbeddingConfig(name="t", num_embeddings=9, embedding_dim=8, feature_names=["a", "b"])
    stored = QuantEmbeddingCollection.from_float(EmbeddingCollection([table], need_indices=need_indices))
    batch = kjt_of({"a": [[1, 2], []], "b": [[3], [8]]})
    expected, found = stored(batch), symbolic_trace(stored)(batch)
    assert list(found) == list(expected)
    for name, jagged in found.items():
        assert torch.equal(jagged.values(), expected[name].values())
        assert (jagged.weights_or_none() is None) != need_indices
