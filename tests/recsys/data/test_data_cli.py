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
from recsys.train.commands.train import main as train_main
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


def test_inspect_counts_the_rows_that_ids_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, schema = tmp_path / "clicks.csv", tmp_path / "schema.toml"
    lines = [f"{i % 7 % 2},{(i % 60) << 16}" for i in range(600)]
    path.write_text("\n".join(["click,ad_id", *lines]))
    assert main(["inspect", str(path), "--out", str(schema)]) == 0
    printed = capsys.readouterr()
    assert "60 IDs -> 57 of 1,024" in printed.out
    assert "60 IDs read 57 of 1,024 rows" in schema.read_text()
    assert printed.err == ""
    assert main(["inspect", str(path), "--json"]) == 0
    click, ad = json.loads(capsys.readouterr().out)["columns"]
    assert click["row_use"] is None
    assert ad["row_use"] == {"num_ids": 60, "num_rows": 57, "table_rows": 1024}
    schema.write_text(schema.read_text().replace("fmix64", "hash"))
    assert main(["inspect", str(path), "--schema", str(schema)]) == 0
    printed = capsys.readouterr()
    assert "60 IDs -> 1 of 1,024" in printed.out
    assert "recsys-data: warning: ad_id: 60 IDs read 1 of 1,024 rows" in printed.err
    assert "give table 'ad_id' ids = \"fmix64\"" in printed.err
    assert main(["inspect", str(path), "--schema", str(schema), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["row_uses"] == {"ad_id": {"num_ids": 60, "num_rows": 1, "table_rows": 1024}}
    assert len(found["warnings"]) == 1


def test_without_a_label_the_columns_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "visits.csv"
    path.write_text("shop,price,did_click\n" + "".join(f"s{i % 7},{i}.5,{i % 2}\n" for i in range(60)))
    assert main(["inspect", str(path)]) == 2
    printed = capsys.readouterr()
    lines = [line.split() for line in printed.out.splitlines()]
    assert ["shop", "sparse", "texts", "7", "-", "0.0%", "texts"] in lines
    assert "--label did_click makes it the label" in printed.out
    assert "label: found none among the columns 'shop', 'price', 'did_click'; name it with" in printed.err
    assert main(["inspect", str(path), "--json"]) == 2
    assert capsys.readouterr().out == ""


def test_a_schema_is_replaced_on_request_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, schema = write_clicks(tmp_path / "clicks.csv", num_rows=50), tmp_path / "schema.toml"
    schema.write_text("edited")
    argv = ["inspect", str(path), "--out", str(schema)]
    assert main(argv) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"--out: got {str(schema)!r}, which is there already, expected a new file: --force" in printed.err
    assert schema.read_text() == "edited"
    assert main([*argv, "--force"]) == 0
    assert read_schema(schema) == infer(path).schema


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["none.csv"], "no such file or folder"),
        (["clicks.csv", "--label", "z"], "label: got 'z', expected one of the columns"),
        (["clicks.csv", "--out", "nowhere/schema.toml"], "No such file or directory"),
        (["clicks.csv", "--schema", "none.toml"], "none.toml"),
        (["clicks.csv", "--schema", "other.toml"], "missing columns ['nothing']"),
        (["clicks.csv", "--schema", "other.toml", "--label", "z"], "--label: got it with --schema"),
    ],
    ids=["file", "label", "out", "schema", "columns", "both"],
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
    table = '[[tables]]\nname = "t"\nfeatures = ["nothing"]\nrows = 5\nids = "hash"\n'
    Path("other.toml").write_text(f'labels = [{{name = "click"}}]\n{table}')
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
        "--data",
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


def test_of_wide_tables_the_first_columns_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"f{i}" for i in range(600)]
    rows = [",".join(str((i + k) % 7) for k in range(600)) + f",{i % 2}\n" for i in range(40)]
    (tmp_path / "wide.csv").write_text(",".join([*names, "click"]) + "\n" + "".join(rows))
    argv = ["inspect", str(tmp_path / "wide.csv"), "--out", str(tmp_path / "schema.toml")]
    assert main(argv) == 0
    printed = capsys.readouterr().out
    assert " f499 " in printed
    assert " f500 " not in printed
    assert " click " in printed
    assert "601 columns, of which the first 500 are shown; --out and --json give all" in printed
    assert len(read_schema(tmp_path / "schema.toml").feature_names) == 600
