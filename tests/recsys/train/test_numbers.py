"""Labels that are numbers: alone and beside clicks, from the schema to the artifact."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from torch.nn import functional

from recsys.artifact.load import load_artifact
from recsys.data.lines import DataError
from recsys.data.scoring import scores
from recsys.data.tables.dataset import rows_of, table_dataset
from recsys.data.tables.infer import infer
from recsys.errors import CheckpointError, SchemaError
from recsys.export import export_model
from recsys.inputs.schema import LabelColumn, Schema, TableSpec
from recsys.metrics.regression import NumberMetrics
from recsys.train.commands.eval import main as evaluate_main
from recsys.train.config import TrainConfig
from recsys.train.fitting import fit
from recsys.train.job import TrainJob
from recsys.train.losses.click import ClickLoss
from recsys.train.model import Model
from recsys.train.progress import TrainProgress
from recsys.train.report import Report
from recsys.train.warm_start import read_start
from tests.recsys.train.test_tables import _SMALL

_ITEMS = TableSpec(name="items", num_embeddings=20, feature_names=("item",))
_SECONDS, _CLICK = LabelColumn(name="seconds", loss="mse"), LabelColumn(name="click")


def _table(num_rows: int = 3_000) -> pa.Table:
    """A table where ``seconds`` is 300 and 20 for each item, with noise of 30, and ``click`` follows the item."""
    generator = np.random.default_rng(0)
    item = generator.integers(0, 20, num_rows)
    return pa.table(
        {
            "item": item,
            "seconds": 300 + 20.0 * item + generator.normal(0, 30, num_rows),
            "click": (generator.random(num_rows) < item / 20).astype(int),
        }
    )


def _schema(*labels: LabelColumn) -> Schema:
    return Schema(labels=labels, dense=(), tables=(_ITEMS,))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Report, Path]:
    """A model of a number and a click, its report, and its artifact."""
    folder = tmp_path_factory.mktemp("numbers")
    schema = _schema(replace(_SECONDS, loss="huber", delta=2.0), _CLICK)
    fitted = fit(_table(), schema=schema, model="dlrm", embedding_dim=8, epochs=4, batch_size=64)
    export_model(fitted.model.module, folder / "both.artifact")
    fitted.model.save(folder / "both.pt")
    parquet.write_table(_table(), folder / "rows.parquet")
    return fitted.model, fitted.report, folder


def test_a_number_and_a_click_are_learned_together(both: tuple[Model, Report, Path]) -> None:
    model, report, _ = both
    measured = report.kept.labels
    number, click = measured["seconds"], measured["click"]
    assert isinstance(number, NumberMetrics)
    assert number.rmse < 45  # of 119 for the mean alone, and 30 for the noise
    assert number.mae < number.rmse
    assert click.auc > 0.7  # type: ignore[union-attr]
    assert {"RMSE", "AUC"} <= set(str(report).split())
    assert TrainProgress.from_json(json.loads(json.dumps(TrainProgress(epochs=report.epochs).to_json())))
    found = model.predict(_table())
    expected = _table().column("seconds").to_numpy()
    held_out = slice(2_700, 3_000)
    errors = found["seconds"][held_out] - expected[held_out]
    assert float(np.sqrt(np.mean(errors**2))) == pytest.approx(number.rmse, rel=1e-5)


def test_the_artifact_answers_with_the_number(both: tuple[Model, Report, Path]) -> None:
    model, _, folder = both
    artifact = load_artifact(folder / "both.artifact")
    (block,) = rows_of(_table(500), model.schema)
    found = scores(artifact, block.take(np.arange(500)))
    for name, expected in model.predict(_table(500)).items():
        scale = float(np.abs(expected).max())
        np.testing.assert_allclose(found[name], expected, atol=2e-2 * scale)


def test_recsys_eval_measures_both(
    both: tuple[Model, Report, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, report, folder = both
    arguments = [str(folder / "both.pt"), "--data", str(folder / "rows.parquet"), "--held-out"]
    assert evaluate_main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["checkpoint"]
    number = report.kept.labels["seconds"]
    assert isinstance(number, NumberMetrics)
    assert found["seconds"]["rmse"] == pytest.approx(number.rmse, rel=1e-5)
    assert found["seconds"]["mae"] == pytest.approx(number.mae, rel=1e-5)
    assert found["seconds"]["loss"] == pytest.approx(number.loss, rel=1e-5)
    assert ["auc" in found[name] for name in ("click", "seconds")] == [True, False]
    page = folder / "page.html"
    arguments = [str(folder / "both.artifact"), *arguments[:3], "--bootstrap", "20", "--slice", "item"]
    assert evaluate_main([*arguments, "--page", str(page)]) == 0
    assert {"RMSE", "AUC"} <= set(capsys.readouterr().out.split())
    assert [f"Calibration of {name}" in page.read_text() for name in ("click", "seconds")] == [True, False]


def test_a_number_alone_is_the_score() -> None:
    fitted = fit(
        _table(), schema=_schema(_SECONDS), embedding_dim=8, epochs=3, batch_size=64, best_metric="mae"
    )
    assert isinstance(fitted.report.metrics, NumberMetrics)
    assert fitted.report.metrics.rmse < 45
    (label,) = fitted.model.schema.labels
    numbers = _table().column("seconds").to_numpy()[:2_700]
    assert label.scale == pytest.approx((numbers.mean(), numbers.std()), rel=1e-5)
    assert list(fitted.model.predict(_table(10))) == ["score"]


def test_the_losses_are_torchs_in_units_of_the_label() -> None:
    torch.manual_seed(0)
    outputs, numbers = torch.randn(9, 2), 50 + 10 * torch.randn(9, 2)
    labels = (
        LabelColumn(name="a", loss="mse", mean=50.0, std=10.0),
        LabelColumn(name="b", loss="huber", delta=0.5, mean=48.0, std=5.0),
    )
    found = ClickLoss(kind="focal", labels=labels).of(outputs, numbers)
    torch.testing.assert_close(found[:, 0], (outputs[:, 0] - (numbers[:, 0] - 50) / 10) ** 2)
    expected = functional.huber_loss(outputs[:, 1], (numbers[:, 1] - 48) / 5, reduction="none", delta=0.5)
    torch.testing.assert_close(found[:, 1], expected)


def test_labels_are_named_as_numbers_without_a_schema() -> None:
    found = infer(_table(), labels=("seconds:huber", "click"))
    assert found.schema.labels == (LabelColumn(name="seconds", loss="huber"), LabelColumn(name="click"))
    assert "a number, huber" in found.label_texts[0]


def test_a_schema_of_numbers_is_read_back() -> None:
    labels = (LabelColumn(name="a", loss="huber", delta=2.0, mean=0.0, std=3.0), _SECONDS)
    schema = _schema(*labels)
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


@pytest.mark.parametrize(
    ("label", "text"),
    [
        ({"name": "a", "loss": "l1"}, "loss: got 'l1', expected"),
        ({"name": "a", "loss": "mse", "at_least": 3}, "expected one of at_least, positive and loss"),
        ({"name": "a", "delta": 2}, "delta: got '2', expected it with the loss huber alone"),
        ({"name": "a", "loss": "mse", "std": 0}, "std: got '0', expected a number above 0"),
    ],
)
def test_wrong_labels_name_the_field(label: dict[str, object], text: str) -> None:
    data = {"labels": [label], "tables": [{"name": "items", "rows": 20, "features": ["item"]}]}
    with pytest.raises(SchemaError, match=text):
        Schema.from_json(data)


def test_wrong_numbers_name_the_row() -> None:
    table = _table(10)
    gap = table.set_column(1, "seconds", pa.array([1.0, None, *range(8)], pa.float64()))
    with pytest.raises(DataError, match=r"row 1: column 'seconds': got a missing value, expected a number"):
        table_dataset(gap, _schema(_SECONDS))
    same = table.set_column(1, "seconds", pa.array([5.0] * 10))
    with pytest.raises(DataError, match="column 'seconds': got 5 in all 9 rows, expected different numbers"):
        table_dataset(same, _schema(_SECONDS))


@pytest.mark.parametrize(
    ("labels", "config", "text"),
    [
        ([_SECONDS], TrainConfig(loss="focal"), "expected neither for labels that are all numbers"),
        (
            [_SECONDS],
            TrainConfig(best_metric="auc"),
            "best_metric: got 'auc', expected one of loss, rmse, mae, last",
        ),
        (
            [_CLICK],
            TrainConfig(best_metric="rmse"),
            "best_metric: got 'rmse', expected one of loss, auc, ne, last",
        ),
    ],
)
def test_settings_that_do_not_fit_numbers(labels: list[LabelColumn], config: TrainConfig, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        TrainJob(dataset=table_dataset(_table(100), _schema(*labels)), model=_SMALL, train=config)


def test_a_warm_start_needs_labels_of_one_kind(both: tuple[Model, Report, Path]) -> None:
    start = read_start(both[2] / "both.pt")
    dataset = table_dataset(_table(100), _schema(LabelColumn(name="seconds", at_least=400.0), _CLICK))
    with pytest.raises(
        CheckpointError, match=r"labels: .* expected the model's, \['seconds \(huber\)', 'click'\]"
    ):
        start.check(dataset)
