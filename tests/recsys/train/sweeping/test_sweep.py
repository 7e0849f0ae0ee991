"""A sweep tries the values of a file, keeps the best model, survives failures, and goes on after an interrupt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from recsys.checkpoint import load_checkpoint
from recsys.metrics.exact import Metrics
from recsys.train.commands.train import main
from recsys.train.commands.train_options import SWEPT
from recsys.train.job import train_over_ranks
from recsys.train.progress import Epoch
from recsys.train.sweeping.pruning import PrunedError, Pruning
from recsys.train.sweeping.runs import SweepRun
from recsys.train.sweeping.space import Search, read_space

_BASE = """
[data]
data = "synthetic"
limit_rows = 200

[model]
embedding_dim = 4
dense_layers = [8]
over_layers = [8]

[training]
batch_size = 64
best_metric = "ne"

[sweep]
"""


def _file(folder: Path, values: str) -> list[str]:
    file = folder / "sweep.toml"
    file.write_text(_BASE + values)
    return ["--config", str(file), "--sweep", str(folder / "runs")]


def _runs(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "runs" / "runs.jsonl").read_text().splitlines()][1:]


def test_lists_are_tried_in_all_combinations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = _file(tmp_path, 'model = ["dlrm", "dcn", "din"]\nover_layers = [[8], [4, 4]]\n')
    assert main(argv) == 0
    printed = capsys.readouterr().out
    runs = _runs(tmp_path)
    assert [(run["values"]["model"], run["values"]["over_layers"]) for run in runs] == [
        (model, layers) for model in ("dlrm", "dcn", "din") for layers in ([8], [4, 4])
    ]
    # A run that cannot be is a row: a DIN needs a history.
    assert [bool(run["error"]) for run in runs] == [False] * 4 + [True] * 2
    best = min(runs[:4], key=lambda run: run["metric"])
    checkpoint = load_checkpoint(tmp_path / "runs" / "best.pt")
    assert checkpoint.info["metrics"]["ne"] == best["metric"] == best["metrics"]["ne"]
    assert f"saved {tmp_path / 'runs' / 'best.pt'}, of run {best['number']}" in printed
    assert "history, target: got '' and ''" in printed
    page = (tmp_path / "runs" / "sweep.html").read_text()
    assert "6 runs" in page
    assert page.count("<circle") == 2 * 4
    # The best run can be repeated.
    again = [
        "--config",
        str(tmp_path / "runs" / "best.run.toml"),
        "--out",
        str(tmp_path / "again.pt"),
        "--json",
    ]
    assert main(again) == 0
    assert (tmp_path / "again.pt").read_bytes() == (tmp_path / "runs" / "best.pt").read_bytes()


_RANGES = (
    "learning_rate = {low = 1e-4, high = 1e-2, log = true}\nembedding_dim = {low = 4, high = 8, step = 4}\n"
)


def test_an_interrupted_sweep_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    (tmp_path / "whole").mkdir()
    assert main([*_file(tmp_path / "whole", _RANGES), "--sweep-runs", "3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["runs"]) == 3
    assert result["runs"][0]["metric"] <= result["runs"][1]["metric"]
    argv = [*_file(tmp_path, _RANGES), "--sweep-runs", "3", "--json"]
    trained, train = [], train_over_ranks

    def interrupted(*args: Any, **options: Any) -> Any:
        trained.append(1)
        if len(trained) == 2:
            raise KeyboardInterrupt
        return train(*args, **options)

    monkeypatch.setattr("recsys.train.sweeping.sweep.train_over_ranks", interrupted)
    assert main(argv) == 1
    assert "interrupted" in capsys.readouterr().err
    assert len(_runs(tmp_path)) == 1
    with (tmp_path / "runs" / "runs.jsonl").open("a") as file:
        file.write('{"number": 2, "val')  # cut off
    assert main(argv) == 0
    assert len(trained) == 4
    assert [run["values"] for run in _runs(tmp_path)] == [run["values"] for run in _runs(tmp_path / "whole")]
    assert [run["metrics"] for run in _runs(tmp_path)] == [
        run["metrics"] for run in _runs(tmp_path / "whole")
    ]
    assert {type(run["values"]["embedding_dim"]) for run in _runs(tmp_path)} == {int}


def test_another_sweep_in_the_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*_file(tmp_path, "seed = [1]\n"), "--json"]) == 0
    assert main([*_file(tmp_path, "seed = [1]\n"), "--json", "--epochs", "1"]) == 2
    assert "has a sweep with options" in capsys.readouterr().err
    assert main([*_file(tmp_path, "seed = [2]\n"), "--json"]) == 2
    assert "has a sweep with sweep \"{'seed': [1]}\", got \"{'seed': [2]}\"" in capsys.readouterr().err


def test_what_cannot_be_read_ends_the_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "clicks.csv").write_text("click,site\n")
    argv = [*_file(tmp_path, "seed = [1, 2]\n"), "--data", str(tmp_path / "clicks.csv")]
    assert main([*argv, "--limit-rows", "10"]) == 2
    assert _runs(tmp_path) == []
    capsys.readouterr()
    assert main([*_file(tmp_path, "seed = [1]\n"), "--checkpoint-dir", str(tmp_path / "run")]) == 2
    assert "--checkpoint-dir: got it with --sweep" in capsys.readouterr().err
    assert main(["--data", "synthetic", "--sweep", str(tmp_path / "other")]) == 2
    assert "expected a table [sweep] in the file of --config" in capsys.readouterr().err


def test_a_sweep_without_a_result_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_file(tmp_path, 'model = ["din"]\n')) == 1
    printed = capsys.readouterr()
    assert "failed: none of 1 runs has a held-out ne" in printed.err
    assert "Failed" in (tmp_path / "runs" / "sweep.html").read_text()


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "got no options"),
        ({"epoch": [1]}, "[sweep] epoch: unknown key, expected one of"),
        ({"threads": [1]}, "[sweep] threads: unknown key"),
        ({"epochs": 3}, "[sweep] epochs: got '3', expected a list of values, or a range such as"),
        ({"epochs": []}, "[sweep] epochs: got '[]', expected a list"),
        ({"epochs": [1, 0]}, "[sweep] epochs: got '0', expected a whole number of at least 1"),
        ({"model": ["dlr"]}, "[sweep] model: got 'dlr', expected one of dlrm"),
        ({"epochs": {"low": 1}}, "[sweep] epochs: got a range without both ends"),
        ({"epochs": {"low": 3, "high": 1}}, "[sweep] epochs: got low 3 and high 1, expected a higher high"),
        ({"epochs": {"low": 1.5, "high": 3}}, "[sweep] epochs: got '1.5', expected a whole number"),
        ({"dropout": {"low": 0, "high": 0.5, "log": True}}, "with log a low above 0"),
        ({"epochs": {"low": "1", "high": 3}}, "low: got '1', expected low, high and step as numbers"),
        ({"epochs": {"low": 1, "high": 3, "steps": 1}}, "steps: got '1', expected low, high and step"),
        ({"epochs": {"low": 1, "high": 3, "step": 0}}, "step: got 0, expected a number above 0"),
    ],
)
def test_a_wrong_value_is_named(document: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_space(document, SWEPT)
    assert said in str(caught.value)


def test_the_search_learns_from_earlier_runs() -> None:
    pytest.importorskip("optuna")
    space = read_space(
        {"learning_rate": {"low": 1e-4, "high": 1.0, "log": True}, "model": ["dlrm", "dcn"]}, SWEPT
    )
    search = Search(space, higher_is_better=True, seed=0)
    runs: list[SweepRun] = []
    for number in range(25):
        values = search.next(runs)
        metric = float(values["model"] == "dcn") - abs(values["learning_rate"] - 0.01)
        # One in five fails, and of the bad ones half are ended early.
        runs.append(
            SweepRun(
                number=number + 1,
                values=values,
                seconds=1.0,
                metric=None if number % 5 == 0 else metric,
                curve={} if number % 5 == 0 else {"1": metric},
                is_pruned=metric < 0 and number % 5 in (1, 2),
            )
        )
    assert sum(run.values["model"] == "dcn" for run in runs[-10:]) >= 7
    assert search.next(runs[:3]) == search.next(runs[:3])


def _epoch(number: int, auc: float | None) -> Epoch:
    metrics = Metrics(num_rows=1, loss=0.5, auc=auc, ne=None, calibration=None)
    return Epoch(number=number, step=number, train_loss=0.5, examples_per_second=1.0, held_out=metrics)


def _ended(pruner: str, curve: list[float | None], num_earlier: int = 5) -> int | None:
    """The epoch after which a run is ended beside others that came to 0.6, 0.7, ... in three."""
    earlier = [
        SweepRun(
            number=i + 1,
            values={},
            seconds=1.0,
            metric=0.6 + i / 10,
            curve={str(epoch): 0.5 + i / 10 + epoch / 30 for epoch in (1, 2, 3)},
        )
        for i in range(num_earlier)
    ]
    earlier += [SweepRun(number=9, values={}, seconds=1.0, error="it failed")]
    pruning = Pruning(pruner, "auc", earlier, len(curve))
    for number, value in enumerate(curve, 1):
        try:
            pruning.epoch_done(_epoch(number, value))
        except PrunedError:
            assert len(pruning.epochs) == number
            return number
    return None


def test_a_run_that_is_worse_than_earlier_ones_ends() -> None:
    pytest.importorskip("optuna")
    assert _ended("median", [0.72, 0.9, 0.9]) == 1  # the median is 0.733, then 0.767
    assert _ended("median", [0.74, 0.76, 0.9]) == 2
    assert _ended("median", [0.8, 0.1, 0.1]) is None  # its best epoch counts
    assert _ended("median", [None, 0.9, 0.9]) is None
    assert _ended("quartile", [0.8, 0.8, 0.8]) == 1
    assert _ended("quartile", [0.9, 0.95, 0.9]) is None
    assert _ended("none", [0.1, 0.1, 0.1]) is None
    assert _ended("median", [0.1, 0.1, 0.1], num_earlier=4) is None


def test_runs_of_a_sweep_are_ended_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    rates = [0.1, 0.11, 0.12, 0.13, 0.14, 1e-9]
    argv = _file(tmp_path, f"row_learning_rate = {rates}\n")
    argv += ["--epochs", "2", "--limit-rows", "800", "--sweep-pruner", "median"]
    assert main(argv) == 0
    printed = capsys.readouterr().out
    runs = _runs(tmp_path)
    assert [run["is_pruned"] for run in runs] == [False] * 5 + [True]
    assert [len(run["curve"]) for run in runs] == [2] * 5 + [1]
    assert "run 6/6: row_learning_rate 1e-09: pruned after epoch 1: ne" in printed
    assert "1 of 1, pruned" in printed
    assert (tmp_path / "runs" / "sweep.html").read_text().count("pruned") == 1
    # What was ended goes on being ended: all runs are there.
    assert main(argv) == 0
    assert _runs(tmp_path) == runs
    assert main([*_file(tmp_path, "seed = [1]\n"), "--sweep-pruner", "median", "--epochs", "1"]) == 2
    assert "--sweep-pruner: got median with 1 epoch, expected several" in capsys.readouterr().err
