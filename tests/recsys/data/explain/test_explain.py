"""Explanations of rows and tables of a small trained model, against the model itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import csv

from recsys.base.hashing import hash_text
from recsys.data.cli import main as data_main
from recsys.data.explain.tables import mappings_of, weights_of
from recsys.data.lines import DataError
from recsys.inputs.crosses import CrossSpec, rows_of_combinations
from recsys.inputs.schema import DenseColumn, LabelColumn, Schema, TableSpec
from recsys.train.fitting import fit
from recsys.train.model import Model
from serve.tools.predict import main as predict_main

_SCHEMA = Schema(
    labels=(LabelColumn(name="click"),),
    dense=(DenseColumn(name="price", missing=2.0, log1p=True, std=2.0), DenseColumn(name="hour")),
    tables=(
        TableSpec(name="items", num_embeddings=64, feature_names=("item",), ids="vocabulary", strings="xxh64"),
        TableSpec(name="tags", num_embeddings=4, feature_names=("tags",), ids="hash", strings="xxh64", separator="|"),
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path, Path]:
    """A model, its file and its table: items of even numbers are clicked on."""
    folder = tmp_path_factory.mktemp("explained")
    generator = np.random.default_rng(0)
    items = generator.integers(12, size=1500)
    table = pa.table(
        {
            "item": [f"i{i}" for i in items],
            "tags": [f"t{i % 5}|t{i % 3}" for i in items],
            "price": generator.random(1500).round(3),
            "hour": generator.random(1500).round(3),
            "click": items % 2,
        }
    )
    path = folder / "clicks.csv"
    csv.write_csv(table, path)
    fitted = fit(
        path, schema=_SCHEMA, model="dcn", epochs=2, embedding_dim=8, batch_size=64, learning_rate=0.01,
        row_learning_rate=0.1, callbacks=[],
    )  # fmt: skip
    fitted.model.save(folder / "model.pt")
    return fitted.model, folder / "model.pt", path


def test_what_a_feature_adds_is_the_logit_without_it(trained: tuple[Model, Path, Path]) -> None:
    model, _, _ = trained
    rows = pa.table(
        {"item": ["i3", "new"], "tags": ["t1|t2", None], "price": [4.0, None], "hour": [0.5, 0.7]}
    )
    first, second = model.explain(rows)
    probability = model.predict(rows)["score"]
    np.testing.assert_allclose(1 / (1 + np.exp(-first.logits["score"])), probability[0], rtol=1e-5)
    without = {
        "item": rows.set_column(0, "item", pa.array([None, None], pa.string())),
        "price": rows.set_column(2, "price", pa.array([None, None], pa.float64())),
        "hour": rows.set_column(3, "hour", pa.array([0.0, 0.0])),
    }
    features = {one.name: one for one in first.features}
    for name, table in without.items():
        chance = model.predict(table)["score"][0]
        lacking = first.logits["score"] - features[name].added["score"]
        np.testing.assert_allclose(1 / (1 + np.exp(-lacking)), chance, rtol=1e-4, atol=1e-6)
    assert first.features[0].name == "item"
    np.testing.assert_allclose(features["price"].transformed, [np.log1p(4.0) / 2], rtol=1e-6)
    mapping = mappings_of(model.module)["items"]  # type: ignore[arg-type]
    assert list(features["item"].rows) == mapping.remap(torch.tensor([hash_text("i3")])).tolist()
    unknown = {one.name: one for one in second.features}
    assert (unknown["item"].num_unknown, unknown["item"].value, unknown["item"].rows) == (1, "new", (63,))
    assert unknown["tags"].rows == ()
    assert unknown["price"].value is None
    np.testing.assert_allclose(unknown["price"].transformed, [np.log1p(2.0) / 2], rtol=1e-6)
    assert unknown["price"].added["score"] == pytest.approx(0, abs=1e-5)


def test_tables_are_counted(trained: tuple[Model, Path, Path]) -> None:
    model, _, path = trained
    items, tags = model.tables(path)
    assert (items.num_rows, items.embedding_dim, items.num_lookups, items.num_read) == (64, 8, 1500, 12)
    assert (items.num_unknown, items.num_zero_rows) == (0, 52)
    norms = weights_of(model.module)["items"].norm(dim=1)  # type: ignore[arg-type]
    assert items.norms[-1] == pytest.approx(float(norms.max()))
    assert items.norms[0] == pytest.approx(float(np.median(norms[norms > 0])), rel=1e-5)
    rows = {hash_text(f"t{i}") % 4 for i in range(5)}
    assert (tags.num_lookups, tags.num_read, tags.num_sharing) == (3000, len(rows), 5 - len(rows))
    assert model.tables()[0].num_lookups is None


def test_tables_of_crossed_features(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    user, shop = np.arange(200) % 13, np.arange(200) % 7
    missing = np.arange(200) % 5 == 0
    table = pa.table({"user": pa.array(user, mask=missing), "shop": shop, "click": (user + shop) % 2})
    schema = Schema(
        labels=(LabelColumn(name="click"),),
        dense=(),
        tables=tuple(
            TableSpec(name=name, num_embeddings=13, feature_names=(name,)) for name in ("user", "shop")
        ),
        crosses=(CrossSpec(name="pair", feature_names=("user", "shop"), num_embeddings=40),),
    )
    model = fit(table, schema=schema, model="dcn", epochs=1, embedding_dim=4, callbacks=[]).model
    *_, pair = model.tables(table)
    kept = ~missing
    rows = rows_of_combinations([user[kept], shop[kept]], 40)
    num_combinations = len({*zip(user[kept].tolist(), shop[kept].tolist(), strict=True)})
    assert (pair.name, pair.num_rows, pair.num_lookups) == ("pair", 40, int(kept.sum()))
    assert (pair.num_read, pair.num_sharing) == (len(set(rows)), num_combinations - len(set(rows)))
    model.save(tmp_path / "model.pt")
    assert data_main(["rows", str(tmp_path / "model.pt")]) == 0
    assert "\npair: 40 rows of 4" in capsys.readouterr().out


def test_items_of_one_parity_are_alike(trained: tuple[Model, Path, Path]) -> None:
    model, _, path = trained
    found = model.similar("item", "i4", path, top=3)
    assert len(found) == 3
    assert found[0].cosine >= found[-1].cosine
    assert {int(one.value[1:]) % 2 for one in found} == {0}
    with pytest.raises(DataError, match="near: 'x' of column 'item' has no row"):
        model.similar("item", "x", path)
    with pytest.raises(DataError, match=r"near: got the column 'price', expected one of \['item', 'tags'\]"):
        model.similar("price", 1, path)


def test_on_the_command_line(trained: tuple[Model, Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    _, file, path = trained
    assert predict_main([str(file), "--data", str(path), "--explain", "--rows", "1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert {one["name"] for one in row["features"]} == {"item", "tags", "price", "hour"}
    assert predict_main([str(file), "--data", str(path), "--explain"]) == 0
    assert capsys.readouterr().out.startswith("row 0: logit score ")
    assert data_main(["rows", str(file), "--data", str(path)]) == 0
    assert "items: 64 rows of 8, 52 of zeros" in capsys.readouterr().out
    assert data_main(["rows", str(file), "--data", str(path), "--near", "item=i4", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 10
    assert data_main(["rows", str(file), "--near", "item"]) == 2
    assert predict_main([str(path.parent), "--data", str(path), "--explain"]) == 2
    assert predict_main(["127.0.0.1:1", "--random", "--explain"]) == 2
    assert "--explain: got it without --data" in capsys.readouterr().err
