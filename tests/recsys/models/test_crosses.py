"""Crossed features: combinations read the same rows in training and in exports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import KeyedJaggedTensor
from recsys.artifact.load import load_artifact
from recsys.configs import DataType
from recsys.data.answers.columns import trained_schema
from recsys.data.lines import DataError
from recsys.data.scoring import schema_for, scores
from recsys.data.tables.dataset import rows_of
from recsys.data.tables.schema_file import read_schema, to_toml
from recsys.errors import CheckpointError, SchemaError
from recsys.inputs.answer_columns import AnswerLayout
from recsys.inputs.crosses import CrossSpec, rows_of_combinations
from recsys.inputs.schema import LabelColumn, Schema, TableSpec
from recsys.inputs.signature import Signature, SparseInput
from recsys.modules.crosses import SEVERAL, Crossing
from recsys.train.fitting import fit
from tests.export.lower.test_lowering import kinds_of, lowered
from tests.recsys.data.blocks import all_of

_CROSS = CrossSpec(name="pair", feature_names=("user", "shop"), num_embeddings=1_000)
_SCHEMA = Schema(
    labels=(LabelColumn(name="click"),),
    dense=(),
    tables=(
        TableSpec(name="user", num_embeddings=7, feature_names=("user",), ids="hash", strings="xxh64"),
        TableSpec(name="shop", num_embeddings=5, feature_names=("shop",), ids="fmix64"),
        TableSpec(name="items", num_embeddings=20, feature_names=("seen", "item"), ids="vocabulary"),
    ),
    crosses=(_CROSS, CrossSpec(name="three", feature_names=("item", "shop", "user"), num_embeddings=600)),
)
_SIZES = {"embedding_dim": 4, "over_layers": [8], "batch_size": 64, "callbacks": []}


def _table(num_rows: int = 400) -> pa.Table:
    generator = np.random.default_rng(0)
    user, shop = generator.integers(20, size=num_rows), generator.integers(-3, 3, size=num_rows)
    return pa.table(
        {
            "user": [None if i % 11 == 0 else f"u{one}" for i, one in enumerate(user)],
            "shop": [None if i % 13 == 0 else int(one) * 2**40 for i, one in enumerate(shop)],
            "seen": [generator.integers(30, size=i % 4).tolist() for i in range(num_rows)],
            "item": generator.integers(30, size=num_rows),
            "click": (user + shop) % 2,
        }
    )


def _batch(bags: dict[str, list[list[int]]]) -> KeyedJaggedTensor:
    values = [i for rows in bags.values() for row in rows for i in row]
    lengths = [len(row) for rows in bags.values() for row in rows]
    return KeyedJaggedTensor([*bags], torch.tensor(values), lengths=torch.tensor(lengths))


def test_graphs_cross_as_training_data_does() -> None:
    generator = np.random.default_rng(0)
    ids = [generator.integers(-(2**63), 2**63 - 1, size=500, dtype=np.int64) for _ in range(3)]
    cross = CrossSpec(name="x", feature_names=("a", "b", "c"), num_embeddings=997)
    batch = _batch({name: of[:, None].tolist() for name, of in zip("cab", [ids[2], *ids[:2]], strict=True)})
    [made] = Crossing([cross])(batch).made.to_dict().values()
    rows = rows_of_combinations(ids, 997)
    assert made.values().tolist() == rows.tolist()
    assert rows.min() >= 0
    assert len(np.unique(rows)) > 300
    # The definition never changes.
    assert rows_of_combinations([np.array([5, -5]), np.array([2**40, 0])], 10**9).tolist() == [
        246094666,
        214787868,
    ]


def test_missing_and_several_values() -> None:
    batch = _batch({"user": [[1], [], [2], [3, 4], [3, 4]], "shop": [[9], [9], [], [9], []]})
    made = Crossing([_CROSS])(batch).made
    assert made.lengths().tolist() == [1, 0, 0, 1, 0]
    expected = rows_of_combinations([np.array([1]), np.array([9])], 1_000)
    assert made.values().tolist() == [int(expected[0]), SEVERAL]


@pytest.mark.parametrize("model", ["dlrm", "wukong", "din"])
def test_artifacts_score_as_the_model_does(tmp_path: Path, model: str) -> None:
    table = _table()
    columns = {"history": "seen", "target": "item"} if model == "din" else {}
    fitted = fit(table, schema=_SCHEMA, model=model, epochs=1, **columns, **_SIZES).model
    config = ExportConfig(data_type=DataType.FP32)
    export_model(fitted.module, tmp_path / "a", config)
    artifact = load_artifact(tmp_path / "a")
    assert {one.name for one in artifact.signature.sparse} == {"user", "shop", "seen", "item"}
    (block,) = rows_of(table, schema_for(artifact))
    found = scores(artifact, all_of(block))["score"]
    np.testing.assert_allclose(found, fitted.predict(table)["score"], atol=2e-6)
    limits = {one.name: one.max_ids for one in artifact.signature.sparse}
    assert limits == {"user": 1, "shop": 1, "seen": None, "item": 1}
    ids = {"user": [[1], [2]], "shop": [[], [3, 4]], "seen": [[1, 2], []], "item": [[1], [2]]}
    batch = _batch({one.name: ids[one.name] for one in artifact.signature.sparse})
    with pytest.raises(ValueError, match=r"sparse\['shop'\].lengths: got 2 in row 1, expected at most 1"):
        artifact.forward(batch.lengths(), batch.values())


def test_given_features_are_looked_up_as_they_come() -> None:
    schema = _SCHEMA.with_sparse(["user", "shop"])
    more = TableSpec(name="item", num_embeddings=30, feature_names=("item",))
    schema = replace(schema, tables=(*schema.tables, more))
    model = fit(_table(), schema=schema, model="dcn", epochs=1, **_SIZES).model.module
    assert kinds_of(lowered(model)) == ["plan", "region", "plan"]
    # Each row has its combinations, those of contexts alone too.
    for context in (("user",), ("user", "shop"), ("item",)):
        of_contexts = lowered(model, is_ranking=True, context=context)
        assert kinds_of(of_contexts) == ["plan", "gather", "plan", "region", "plan"]


def test_several_values_are_no_training_data() -> None:
    schema = replace(_SCHEMA, crosses=(replace(_CROSS, feature_names=("user", "seen")),))
    with pytest.raises(
        DataError, match=r"row 2: column 'seen': got 2 values, expected at most one: 'pair' cross"
    ):
        fit(_table(), schema=schema, model="dcn", epochs=1, **_SIZES)


def test_a_history_is_not_crossed() -> None:
    schema = replace(_SCHEMA, crosses=(replace(_CROSS, feature_names=("user", "seen")),))
    with pytest.raises(
        ValueError, match=r"schema.crosses: 'pair' got the feature 'seen', which is the model's hist"
    ):
        fit(_table(), schema=schema, model="din", history="seen", target="item", epochs=1, **_SIZES)


def test_a_schema_file_holds_crosses(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(to_toml(_SCHEMA))
    assert read_schema(tmp_path / "s.toml") == _SCHEMA
    assert _SCHEMA.with_sparse(["user", "shop"]).crosses == (_CROSS,)
    assert _SCHEMA.with_sparse(["user"]).crosses == ()


@pytest.mark.parametrize(
    ("cross", "text"),
    [
        ({"features": ["user"]}, r"crosses\[0\].features: got .*user.*, expected two or more different"),
        ({"features": ["user", "user"]}, "expected two or more different"),
        ({"features": ["user", "age"]}, "'pair' got the feature 'age', expected some of"),
        ({"rows": 0}, r"crosses\[0\].rows: got '?0"),
        ({"name": "shop"}, "'shop' is named more than once"),
        ({"ids": "hash"}, r"unknown fields \['ids'\]"),
    ],
)
def test_wrong_crosses(cross: dict[str, object], text: str) -> None:
    data = {**_SCHEMA.to_json(), "crosses": [{**_CROSS.to_json(), **cross}]}
    with pytest.raises(SchemaError, match=text):
        Schema.from_json(data)


def test_lists_are_not_crossed() -> None:
    tables = (replace(_SCHEMA.tables[0], separator="|"), *_SCHEMA.tables[1:])
    with pytest.raises(
        SchemaError, match="'user', whose table has a separator, expected features of one value"
    ):
        replace(_SCHEMA, tables=tables)


def test_models_of_vectors_refuse_crosses() -> None:
    sizes = {**_SIZES, "over_layers": [8, 4]}
    with pytest.raises(ValueError, match=r"schema\.crosses: got 'pair' with --model twotower, expected none"):
        fit(_table(), schema=_SCHEMA, model="twotower", item_features=("item",), epochs=1, **sizes)


def test_a_model_goes_on_with_its_own_crosses(tmp_path: Path) -> None:
    fit(_table(), schema=_SCHEMA, model="dcn", epochs=1, **_SIZES).model.save(tmp_path / "m.pt")
    rest = {name: value for name, value in _SIZES.items() if name in ("batch_size", "callbacks")}
    fit(_table(), init_from=tmp_path / "m.pt", epochs=1, **rest)
    with pytest.raises(CheckpointError, match="init_from: crosses: the data has"):
        fit(_table(), schema=replace(_SCHEMA, crosses=()), init_from=tmp_path / "m.pt", epochs=1, **rest)


def test_an_explanation_takes_a_feature_out_of_its_combinations() -> None:
    schema = replace(_SCHEMA, crosses=(_CROSS,))
    model = fit(_table(), schema=schema, model="dcn", epochs=1, **_SIZES).model
    [row] = model.explain(_table().slice(1, 1), 1)
    without = _table().slice(1, 1).set_column(0, "user", pa.array([None], pa.string()))
    [lacking] = model.explain(without, 1)
    [user] = [one for one in row.features if one.name == "user"]
    assert user.added["score"] == pytest.approx(row.logits["score"] - lacking.logits["score"], abs=1e-6)


def test_a_joined_table_crosses_what_the_log_has() -> None:
    def layout(*names: str) -> AnswerLayout:
        sparse = tuple(SparseInput(name=name, pooling="sum", tables=()) for name in names)
        return AnswerLayout(signature=Signature(dense=(), sparse=sparse, outputs=()))

    assert trained_schema(_SCHEMA, layout("user", "shop", "item"), ["click"]).crosses == _SCHEMA.crosses
    assert trained_schema(_SCHEMA, layout("user", "shop"), ["click"]).crosses == (_CROSS,)
