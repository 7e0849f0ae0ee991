"""``fit``: the same training as ``recsys-train``, from a frame to a file, and scores of frames."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recsys.checkpoint import load_checkpoint
from recsys.data.sources.synthetic import synthetic
from recsys.data.tables.infer import infer
from recsys.errors import CheckpointError
from recsys.metrics.exact import Metrics, auc
from recsys.train import Callback, Model, fit
from recsys.train.commands.train import main
from recsys.train.progress import Epoch
from tests.support.click_tables import write_clicks

_SMALL: dict[str, Any] = {"embedding_dim": 4, "dense_layers": [8], "over_layers": [8, 4]}


def _shops(num_rows: int = 1_500) -> pa.Table:
    """A table whose clicks follow the shop; ``w`` is no input where it is ignored."""
    generator = np.random.default_rng(0)
    shop = generator.integers(0, 20, num_rows)
    return pa.table(
        {
            "click": (generator.random(num_rows) < shop / 20).astype(int),
            "shop": [f"shop {i}" for i in shop],
            "user_id": generator.integers(0, 2**40, num_rows),
            "price": generator.normal(size=num_rows),
            "w": generator.integers(0, 9, num_rows),
        }
    )


def test_a_frame_gives_a_model_its_report_and_scores(capsys: pytest.CaptureFixture[str]) -> None:
    fitted = fit(_shops(), label="click", ignore="w", model="deepfm", epochs=6, batch_size=128)
    printed = capsys.readouterr().out
    assert "epoch 6/6" in printed
    assert "recsys-data inspect" not in printed  # a frame has no path
    metrics = fitted.report.metrics
    assert isinstance(metrics, Metrics)
    assert metrics.auc is not None
    assert metrics.auc > 0.7
    assert f"held-out AUC {metrics.auc:.4f}" in str(fitted.report)
    rows = _shops(300).drop_columns(["click", "w"])
    scores = fitted.model.predict(rows)
    assert scores.keys() == {"score"}
    assert auc(scores["score"], _shops(300)["click"].to_numpy().astype(np.float32)) == pytest.approx(
        metrics.auc, abs=0.15
    )
    assert json.loads(json.dumps(fitted.report.to_json()))["num_held_out_rows"] == 150


def test_the_command_writes_the_same_model(tmp_path: Path) -> None:
    write_clicks(tmp_path / "clicks.csv", num_rows=1_000)
    argv = [
        "--data",
        str(tmp_path / "clicks.csv"),
        "--embedding-dim",
        "4",
        "--dense-layers",
        "8",
        "--seed",
        "3",
    ]
    assert main([*argv, "--over-layers", "8,4", "--json", "--out", str(tmp_path / "model.pt")]) == 0
    fitted = fit(tmp_path / "clicks.csv", seed=3, callbacks=[], **_SMALL)
    theirs, ours = load_checkpoint(tmp_path / "model.pt"), fitted.model.checkpoint
    assert ours.arguments == theirs.arguments
    assert all(tensor.equal(theirs.state_dict[name]) for name, tensor in ours.state_dict.items())
    assert ours.info == theirs.info
    fitted.model.save(tmp_path / "own.pt")
    again = Model.load(tmp_path / "own.pt")
    clicks = tmp_path / "clicks.csv"
    assert again.predict(clicks)["score"].tolist() == fitted.model.predict(str(clicks))["score"].tolist()


def test_a_model_goes_on_with_its_schema(tmp_path: Path) -> None:
    first = fit(_shops(), label="click", callbacks=[], **_SMALL)
    first.model.save(tmp_path / "first.pt")
    second = fit(_shops(500), init_from=tmp_path / "first.pt", callbacks=[])
    assert second.model.schema == first.model.schema
    with pytest.raises(ValueError, match=r"^embedding_dim: got it with init_from"):
        fit(_shops(), init_from=tmp_path / "first.pt", embedding_dim=8)


def test_a_schema_or_an_opened_data_set_may_be_given() -> None:
    schema = infer(_shops(), ("click",)).schema
    assert fit(_shops(), schema=schema, callbacks=[], **_SMALL).model.schema == schema
    with pytest.raises(ValueError, match="opened Dataset"):
        fit(synthetic(500), label="click")
    assert fit(synthetic(500), callbacks=[], batch_size=100, **_SMALL).report.info["data"] == "synthetic"


class _Recorder(Callback):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def __enter__(self) -> _Recorder:
        self.seen.append("enter")
        return self

    def __exit__(self, *error: object) -> None:
        self.seen.append("exit")

    def epoch_done(self, epoch: Epoch) -> None:
        self.seen.append(f"epoch {epoch.number}")


def test_callbacks_see_the_training_from_its_beginning_to_its_end() -> None:
    recorder = _Recorder()
    fit(_shops(300), label="click", epochs=2, callbacks=[recorder], **_SMALL)
    assert recorder.seen == ["enter", "epoch 1", "epoch 2", "exit"]


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"'epoch', which does not exist; did you mean epochs\?"):
        fit(_shops(), epoch=3)
    with pytest.raises(ValueError, match=r"^epochs: got 0"):
        fit(_shops(), epochs=0)
    with pytest.raises(ValueError, match="no such file"):
        fit(tmp_path / "missing.csv")
    model = fit(_shops(300), label="click", callbacks=[], **_SMALL).model
    with pytest.raises(ValueError, match=r"missing columns \['shop'\]"):
        model.predict(_shops(10).drop_columns(["shop"]))
    del model.checkpoint.arguments["inputs"]
    with pytest.raises(CheckpointError, match=r"^arguments\.inputs: got none"):
        Model(model.checkpoint)
