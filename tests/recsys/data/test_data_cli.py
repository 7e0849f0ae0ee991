"""recsys-data inspect shows each column's use, and writes a schema that recsys-train takes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow import parquet

from recsys.checkpoint import build_model, load_checkpoint
from recsys.data.cli import main
from recsys.data.tables.dataset import rows_of
from recsys.data.tables.infer import infer
from recsys.data.tables.schema_file import read_schema
from recsys.train.cli import main as train_main
from tests.recsys.data.blocks import all_of
from tests.support.click_tables import COLUMNS, write_clicks


def test_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_clicks(tmp_path / "clicks.csv", num_rows=500)
    assert main(["inspect", str(path), "--out", str(tmp_path / "schema.toml")]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in COLUMNS)
    assert "a sample of 500 rows; wrote" in printed
    assert read_schema(tmp_path / "schema.toml") == infer(path).schema
    assert "named as one; its last rows are held out" in " ".join(printed.split())


def test_inspect_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_clicks(tmp_path / "clicks.csv", num_rows=500)
    assert main(["inspect", str(path), "--json", "--label", "click", "--hash-rows", "77"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [column["name"] for column in result["columns"]] == list(COLUMNS)
    assert max(table["rows"] for table in result["schema"]["tables"]) == 77


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["none.csv"], "there is no such file or folder"),
        (["clicks.csv", "--label", "z"], "label: got 'z', expected one of the columns"),
        (["clicks.csv", "--out", "nowhere/schema.toml"], "No such file or directory"),
    ],
    ids=["file", "label", "out"],
)
def test_bad_usage(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_clicks(Path("clicks.csv"), num_rows=50)
    assert main(["inspect", *words]) == 2
    assert text in capsys.readouterr().err


def test_item_vectors_multiply_to_the_logits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_clicks(tmp_path / "clicks.csv", num_rows=600)
    argv = [
        "--data",
        str(path),
        "--model",
        "twotower",
        "--item-features",
        "site_id,app_id",
        "--over-layers",
        "8,4",
    ]
    assert train_main([*argv, "--embedding-dim", "4", "--json", "--out", str(tmp_path / "model.pt")]) == 0
    out = tmp_path / "vectors.parquet"
    words = [
        "item-vectors",
        str(tmp_path / "model.pt"),
        "--items",
        str(path),
        "--keep",
        "site_id",
        "--out",
        str(out),
    ]
    assert main(words) == 0
    table = parquet.read_table(out)
    assert (table.column_names, table.num_rows) == (["site_id", "vector"], 600)
    model = build_model(load_checkpoint(tmp_path / "model.pt")).eval()
    (block,) = rows_of(path, model.inputs)
    batch = all_of(block).batch(np.arange(600))
    with torch.no_grad():
        vectors = model.model.sparse_arch(batch.kjt)
        users = vectors.index_select(1, model.model.user_places).flatten(1)
        user = model.model.towers.user(torch.cat((model.transforms(batch.dense), users), dim=1))
        expected = model.logits(batch.dense, batch.kjt)[:, 0]
    items = torch.tensor(table.column("vector").to_pylist())
    torch.testing.assert_close((user * items).sum(dim=1), expected, rtol=1e-4, atol=1e-5)
    capsys.readouterr()
    assert main([*words[:-1], str(tmp_path / "nowhere" / "v.parquet")]) == 2
    assert main([*words, "--keep", "price,z"]) == 2
    assert "keep: got unknown columns ['z']" in capsys.readouterr().err
