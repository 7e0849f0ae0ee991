"""Table configurations: initialization, names of outputs, and every field that can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from recsys import (
    DataType,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    PoolingType,
)
from recsys.configs import data_type_to_dtype, dtype_to_data_type, embedding_names, pooling_type_to_str
from tests.support.helpers import bag, sequence

TABLE = bag("t", 16, 4, ["a"])


def test_defaults() -> None:
    table = EmbeddingBagConfig(num_embeddings=4, embedding_dim=2)
    assert (table.name, table.feature_names, table.data_type) == ("", [], DataType.FP32)
    assert table.pooling is PoolingType.SUM
    assert table.num_features() == 0


def test_uniform_initialization_by_the_number_of_rows_or_as_asked() -> None:
    assert (TABLE.get_weight_init_min(), TABLE.get_weight_init_max()) == (-0.25, 0.25)
    asked = replace(TABLE, num_embeddings=1000, weight_init_min=2.0, weight_init_max=3.0)
    weight = next(EmbeddingBagCollection([asked]).parameters()).detach()
    assert 2.0 <= float(weight.min()) < 2.01
    assert 2.99 < float(weight.max()) <= 3.0


def test_own_initialization() -> None:
    table = replace(TABLE, init_fn=lambda weight: weight.fill_(7.0))
    assert (next(EmbeddingBagCollection([table]).parameters()) == 7.0).all()


def test_a_table_without_features_has_that_of_its_own_name() -> None:
    given = replace(TABLE, feature_names=[])
    assert EmbeddingBagCollection([given]).embedding_bag_configs()[0].feature_names == [TABLE.name]
    assert given.feature_names == []
    rows = EmbeddingCollection([replace(sequence("t", 16, 4, ["a"]), feature_names=[])])
    assert rows.embedding_names_by_table() == [["t"]]


def test_the_arguments_are_in_the_order_of_torchrec() -> None:
    table = EmbeddingBagConfig(8, 4, "t", DataType.FP32, ["a"], 2.0, 1.0, None, torch.nn.init.zeros_)
    assert (table.get_weight_init_max(), table.get_weight_init_min()) == (2.0, 1.0)
    assert not next(EmbeddingBagCollection([table]).parameters()).any()


def test_parameters_are_reset() -> None:
    bags, rows = EmbeddingBagCollection([TABLE]), EmbeddingCollection([sequence("t", 16, 4, ["a"])])
    for made in (bags, rows):
        before = next(made.parameters()).detach().clone()
        made.reset_parameters()
        assert not torch.equal(next(made.parameters()), before)
    EmbeddingBagCollection([TABLE], device="meta").reset_parameters()


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.quint4x2,
        torch.quint2x4,
    ],
)
def test_types_go_to_dtypes_and_back(dtype: torch.dtype) -> None:
    assert data_type_to_dtype(dtype_to_data_type(dtype)) == dtype


def test_modes_of_pooling() -> None:
    assert [pooling_type_to_str(PoolingType(kind)) for kind in ("SUM", "MEAN")] == ["sum", "mean"]
    with pytest.raises(ValueError, match=r"pooling_type: got PoolingType\.NONE, expected SUM or MEAN"):
        pooling_type_to_str(PoolingType.NONE)


def test_a_feature_of_several_tables_is_named_with_each() -> None:
    tables = [bag("t", 4, 2, ["a", "b"]), bag("u", 4, 2, ["b", "c"])]
    assert embedding_names(tables) == [["a", "b@t"], ["b@u", "c"]]


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("no name", {"name": ""}, "name: expected a name without a dot"),
    ("dot", {"name": "a.b"}, "name: expected a name without a dot"),
    (
        "a method of modules",
        {"name": "forward"},
        "name: got 'forward', which torch.nn.Module uses itself; choose another name, such as 'forward_table'",
    ),
    (
        "an attribute of modules",
        {"name": "training"},
        "name: got 'training', which torch.nn.Module uses itself",
    ),
    ("inside modules", {"name": "_modules"}, "name: got '_modules', which torch.nn.Module uses itself"),
    ("no rows", {"num_embeddings": 0}, "num_embeddings: got 0, expected at least 1"),
    ("no columns", {"embedding_dim": 0}, "embedding_dim: got 0, expected at least 1"),
    ("pruned", {"num_embeddings_post_pruning": 3}, "num_embeddings_post_pruning: got 3, expected None"),
    ("virtual", {"use_virtual_table": True}, "use_virtual_table: got True, expected False"),
    ("doubled feature", {"feature_names": ["a", "a"]}, "feature_names: got .*each feature once"),
    ("row type", {"data_type": DataType.INT8}, "data_type: got INT8, expected FP32, FP16 or BF16"),
]


@pytest.mark.parametrize(("changes", "message"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
@pytest.mark.parametrize("kind", ["bags", "rows"])
def test_wrong_tables_are_named(kind: str, changes: dict[str, Any], message: str) -> None:
    makers: dict[str, Callable[[], object]] = {
        "bags": lambda: EmbeddingBagCollection([replace(TABLE, **changes)]),
        "rows": lambda: EmbeddingCollection([replace(sequence("t", 16, 4, ["a"]), **changes)]),
    }
    with pytest.raises(ValueError, match=r"tables\['.*'\]\." + message):
        makers[kind]()


def test_collections_that_are_wrong_as_a_whole() -> None:
    # One without tables is none.
    assert EmbeddingBagCollection([]).embedding_bag_configs() == []
    with pytest.raises(ValueError, match=r"tables\['t'\].name: got it more than once"):
        EmbeddingBagCollection([TABLE, TABLE])
    with pytest.raises(
        ValueError, match=r"tables\['t'\].pooling: got PoolingType.NONE, expected SUM or MEAN"
    ):
        EmbeddingBagCollection([replace(TABLE, pooling=PoolingType.NONE)])
    other = EmbeddingConfig(name="u", num_embeddings=4, embedding_dim=8, feature_names=["b"])
    with pytest.raises(ValueError, match=r"tables: got embedding_dim {'t': 4, 'u': 8}, expected the same"):
        EmbeddingCollection([sequence("t", 4, 4, ["a"]), other])


def test_data_types_are_printed_by_name() -> None:
    assert f"{DataType.FP16} {DataType.INT4!s}" == "FP16 INT4"
