"""One file holds a run: it is written beside the model, repeats it bit for bit, and errors name its sections."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from recsys.checkpoint import load_checkpoint
from recsys.train import fit
from recsys.train.commands.train import main
from tests.support.click_tables import write_clicks

_SIZES = """
[model]
model = "dcn"
embedding_dim = 4
over_layers = [8, 4]

[training]
seed = 5
batch_size = 32

[schedule]
schedule = "cosine"
row_schedule = "constant"
"""
_SCHEMA = """
[[schema.labels]]
name = "click"

[[schema.dense]]
name = "banner_pos"

[[schema.tables]]
name = "site"
features = ["site_id"]
rows = 100
ids = "hash"
strings = "xxh64"
"""


def _written(folder: Path, text: str) -> Path:
    write_clicks(folder / "clicks.csv", num_rows=200)
    file = folder / "run.toml"
    file.write_text(f'[data]\ndata = "clicks.csv"\n{text}')
    return file


@pytest.mark.parametrize("schema", ["", _SCHEMA], ids=["inferred", "given"])
def test_the_written_file_repeats_the_run(
    tmp_path: Path, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _written(tmp_path, _SIZES + schema + '\n[export]\ntable_dtype = ["site=int4"]\n')
    out = tmp_path / "model.pt"
    assert main(["--config", str(file), "--epochs", "2", "--out", str(out), "--json"]) == 0
    run = tomllib.loads((tmp_path / "model.run.toml").read_text())
    assert run["data"]["data"] == "clicks.csv"  # beside it
    assert run["training"]["epochs"] == 2
    assert run["training"]["learning_rate"] == 1e-3
    assert run["schedule"]["row_schedule"] == "constant"
    assert run["schema"]["labels"] == [{"name": "click"}]
    assert run["export"] == {"checkpoint": "model.pt", "table_dtype": ["site=int4"]}
    before = out.read_bytes()
    monkeypatch.chdir("/")  # paths are those beside the file
    assert (
        main(["--config", str(tmp_path / "model.run.toml"), "--out", str(tmp_path / "again.pt"), "--json"])
        == 0
    )
    assert (tmp_path / "again.pt").read_bytes() == before
    fitted = fit(config=tmp_path / "model.run.toml", callbacks=[])
    fitted.model.save(tmp_path / "fitted.pt")
    assert (tmp_path / "fitted.pt").read_bytes() == before
    less = fit(config=tmp_path / "model.run.toml", epochs=1, embedding_dim=8, callbacks=[])
    assert len(less.report.epochs) == 1


def test_the_file_of_a_directory_goes_on(tmp_path: Path) -> None:
    file, folder = _written(tmp_path, _SIZES), tmp_path / "run"
    assert main(["--config", str(file), "--checkpoint-dir", str(folder), "--json"]) == 0
    more = ["--config", str(folder / "run.toml"), "--resume", "--row-schedule", "constant", "--json"]
    assert main([*more, "--out", str(tmp_path / "model.pt")]) == 0
    assert load_checkpoint(tmp_path / "model.pt").info["train"]["seed"] == 5


def test_a_source_is_in_the_file_too(tmp_path: Path) -> None:
    argv = ["--data", "synthetic", "--limit-rows", "100", "--seed", "2", "--out", str(tmp_path / "model.pt")]
    assert main([*argv, "--embedding-dim", "4", "--json"]) == 0
    fit(config=tmp_path / "model.run.toml", callbacks=[]).model.save(tmp_path / "again.pt")
    assert (tmp_path / "again.pt").read_bytes() == (tmp_path / "model.pt").read_bytes()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[model]\nepochs = 2\n", "model.epochs: unknown key of [model], expected one of"),
        ("[model]\nepochs = 2\n", "; it belongs in [training]"),
        ("[training]\nepoch = 2\n", "did you mean epochs?"),
        ("[training]\nepochs = 0\n", "epochs: got '0', expected a whole number of at least 1"),
        ("[trainings]\nepochs = 1\n", "trainings: unknown key, expected one of"),
        ("[training]\nepochs = 1\n[schedule]\nepochs = 1\n", "schedule.epochs: unknown key of [schedule]"),
        ('[schema]\ntables = "site"\n', "[schema]: "),
        ('[result]\nout = "model.pt"\n[schema]\nlabels = 3\n', "[schema]: "),
    ],
)
def test_errors_name_the_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    argv = ["--config", str(_written(tmp_path, text)), "--out", str(tmp_path / "model.pt")]
    assert _status(argv) == 2
    assert said in capsys.readouterr().err


def _status(argv: list[str]) -> object:
    try:
        return main(argv)
    except SystemExit as ended:
        return ended.code


def test_a_key_is_given_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.toml"
    file.write_text("epochs = 1\n[training]\nepochs = 2\n")
    with pytest.raises(SystemExit):
        main(["--config", str(file)])
    assert "epochs: got it twice, expected it in one place" in capsys.readouterr().err
