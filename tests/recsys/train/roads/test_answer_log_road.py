"""From answers back to training: a table, served and logged, joined with its labels, trains to the AUC that it gave."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from export.cli import main as export_main
from recsys.base.native_module import NotBuiltError
from recsys.data.cli import main as data_main
from recsys.data.tables.infer import infer
from recsys.data.tables.schema_file import read_schema, to_toml
from recsys.inputs.schema import Schema
from recsys.train.commands.train import main as train_main
from serve.client import Client
from serve.engine.native import load_binding
from tests.support.click_tables import write_clicks
from tests.support.serve.spawned import spawned

NUM_ROWS, ROWS_PER_REQUEST = 6_000, 20
#: Tolerance of an AUC: prices are float32 in requests.
_A_FEW_PAIRS = 1e-3
_TRAIN = ["--epochs", "2", "--embedding-dim", "8", "--over-layers", "16,8", "--json", "--seed", "3"]


def trained(data: Path, schema: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> float:
    """Train, and return the AUC of the held-out rows."""
    capsys.readouterr()
    assert train_main(["--data", str(data), "--schema", str(schema), "--out", str(out), *_TRAIN]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["epochs"][-1]["num_rows"] == NUM_ROWS // 10
    return float(found["epochs"][-1]["auc"])


def serve_all(folder: Path, engine: str, schema: Schema) -> None:
    """Ask for all rows in order, and note their labels by request ID and row."""
    with (folder / "clicks.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    command = [sys.executable, "-m", "serve.app.cli", str(folder / "model.artifact"), "--port", "0", "--json"]
    command += [
        "--engine",
        engine,
        "--answer-log-destination",
        str(folder / "answers"),
        "--metrics-port",
        "0",
    ]
    with (
        spawned(command, folder / "server.log") as server,
        Client(server.address) as client,
        (folder / "labels.csv").open("w", newline="") as file,
    ):
        labels = csv.writer(file)
        labels.writerow(["request_id", "row", "click"])
        for number, first in enumerate(range(0, NUM_ROWS, ROWS_PER_REQUEST)):
            part = rows[first : first + ROWS_PER_REQUEST]
            dense = [
                [float(row[name]) if row[name] else math.nan for name in schema.dense_names] for row in part
            ]
            sparse = {
                name: [[row[name]] if row[name] else [] for row in part] for name in schema.feature_names
            }
            request_id = f"visit-{number}"
            client.predict({"dense_features": dense}, sparse, request_id=request_id)
            # Views that nobody clicked have no label.
            labels.writerows([request_id, i, 1] for i, row in enumerate(part) if row["click"] == "1")
        server.process.terminate()
        assert server.finish()[0] == 0


@pytest.mark.parametrize("engine", ["reference", "native"])
def test_a_joined_table_trains_as_the_table_that_was_served(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if engine == "native":
        try:
            load_binding()
        except NotBuiltError as error:
            pytest.skip(str(error))
    write_clicks(tmp_path / "clicks.csv", num_rows=NUM_ROWS)
    (tmp_path / "schema.toml").write_text(to_toml(infer(tmp_path / "clicks.csv").schema))
    schema = read_schema(tmp_path / "schema.toml")
    before = trained(tmp_path / "clicks.csv", tmp_path / "schema.toml", tmp_path / "model.pt", capsys)
    assert export_main([str(tmp_path / "model.pt"), "--dtype", "fp32"]) == 0
    serve_all(tmp_path, engine, schema)
    table = tmp_path / "table.parquet"
    argv = ["--log", str(tmp_path / "answers"), "--labels", str(tmp_path / "labels.csv"), "--within", "1ms"]
    argv += ["--model-file", str(tmp_path / "model.artifact"), "--schema-out", str(tmp_path / "table.toml")]
    capsys.readouterr()
    assert data_main(["join", *argv, "--until", "2100-01-01", "--out", str(table), "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert counts["rows"] == counts["rows_written"] == NUM_ROWS
    assert counts["requests"] == NUM_ROWS // ROWS_PER_REQUEST
    assert counts["labels_used"] == counts["labels"] == counts["rows_labelled"]
    assert parquet.read_metadata(table).num_rows == NUM_ROWS
    after = trained(table, tmp_path / "table.toml", tmp_path / "again.pt", capsys)
    assert before > 0.55
    assert after == pytest.approx(before, abs=_A_FEW_PAIRS)
