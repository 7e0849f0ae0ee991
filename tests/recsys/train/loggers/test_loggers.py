"""Loggers write what was measured, with the settings, where their own tools read it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from recsys.data.sources.synthetic import synthetic
from recsys.train import Callback, Fitted, fit
from recsys.train.commands.train import main
from recsys.train.loggers import open_logger

_SMALL: dict[str, Any] = {"embedding_dim": 4, "dense_layers": [8], "over_layers": [8, 4], "epochs": 2}


def _fitted(log: str) -> Fitted:
    return fit(synthetic(200), batch_size=64, callbacks=[], log=log, log_every=2, **_SMALL)


def test_tensorboard_has_the_settings_as_hyperparameters(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    fitted = _fitted(f"tensorboard:{tmp_path}")
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.step for event in events.Scalars("held_out/auc")] == [3, 6]
    assert events.Scalars("held_out/loss")[-1].value == pytest.approx(fitted.report.epochs[-1].held_out.loss)
    plugin = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    found = plugin_data_pb2.HParamsPluginData.FromString(plugin).session_start_info.hparams
    assert found["over_layers"].string_value == "8,4"
    assert found["embedding_dim"].number_value == 4
    assert found["schedule"].string_value == "constant"


class _Stops(Callback):
    def batch_done(self, num_rows: int) -> None:
        if num_rows:
            raise RuntimeError("stopped")


@pytest.fixture
def no_own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_own_store")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's use of SQLAlchemy
def test_mlflow_has_parameters_metrics_and_the_end(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    fitted = _fitted(f"mlflow:{uri}")
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("recsys-train")
    with pytest.raises(RuntimeError, match="stopped"):
        fit(synthetic(200), log=f"mlflow:{uri}", callbacks=[_Stops()], **_SMALL)
    failed, run = client.search_runs([experiment.experiment_id])
    assert (run.info.status, failed.info.status) == ("FINISHED", "FAILED")
    assert run.data.params["over_layers"] == "8,4"
    assert run.data.params["learning_rate"] == "0.002"
    assert run.data.params["data"] == "synthetic"
    assert run.data.metrics["held_out/loss"] == pytest.approx(fitted.report.epochs[-1].held_out.loss)
    aucs = client.get_metric_history(run.info.run_id, "held_out/auc")
    assert [metric.step for metric in aucs] == [3, 6]
    windows = client.get_metric_history(run.info.run_id, "train/loss")
    assert [metric.step for metric in windows] == [2, 3, 4, 6]


def test_wandb_writes_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    fitted = _fitted(f"wandb:{tmp_path / 'runs'}")
    [file] = (tmp_path / "runs" / "wandb").glob("offline-run-*/run-*.wandb")
    # Numbers are texts of JSON in the records.
    losses = [json.dumps(epoch.held_out.loss) for epoch in fitted.report.epochs]
    missing = {text.encode() for text in ("over_layers", '"8,4"', *losses)}
    until_s = time.monotonic() + 60
    while missing and time.monotonic() < until_s:  # W&B's process writes the end once the run is finished
        written = file.read_bytes()
        missing = {text for text in missing if text not in written}
        time.sleep(0.05)
    assert not missing


def test_a_wrong_logger_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--data", "synthetic", "--limit-rows", "100", "--out", str(tmp_path / "model.pt")]
    assert main([*argv, "--log", "tensorbord:x"]) == 2
    assert (
        "log: got 'tensorbord:x', expected one of tensorboard, mlflow, wandb; did you mean tensorboard?"
        in (capsys.readouterr().err)
    )
    assert main([*argv, "--log", "tensorboard"]) == 2
    assert "got no folder, expected tensorboard:DIR" in capsys.readouterr().err


@pytest.mark.parametrize("uri", ["nothing://x", "mlruns"])
def test_a_store_that_mlflow_refuses_is_named(
    uri: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"^--log mlflow: {uri}: MLflow refuses it"):
        open_logger(f"mlflow:{uri}", {}, "")


@pytest.mark.parametrize("kind", ["mlflow", "wandb", "tensorboard"])
def test_packages_are_named_where_they_are_missing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mlflow.entities", "wandb", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=rf"^--log {kind}: .* is not installed: pip install .*{kind}"):
        open_logger(kind, {}, "")
