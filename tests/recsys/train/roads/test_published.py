"""The published files of Avazu, Criteo and MovieLens train as they are."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from export.cli import main as export_main
from recsys.checkpoint import load_checkpoint
from recsys.data.lines import DataError
from recsys.data.tables.dataset import table_dataset
from recsys.data.tables.infer import infer
from recsys.inputs.schema import Schema
from recsys.train.commands.train import main as train_main
from serve.tools.predict import main as predict_main
from tests.recsys.data.blocks import all_of
from tests.support.click_tables import write_clicks

_NUM_ROWS = 300


def _criteo() -> Iterator[str]:
    draw = np.random.default_rng(0).integers
    for i in range(_NUM_ROWS):
        numbers = ["" if draw(4) == 0 else str(draw(-1, 500)) for _ in range(13)]
        codes = ["" if draw(5) == 0 else f"{draw(40) * 104_729 % 2**32:08x}" for _ in range(26)]
        yield "\t".join([str(i % 2), *numbers, *codes])


def _ratings(separator: str, *, halves: bool) -> Iterator[str]:
    draw = np.random.default_rng(0).integers
    for i in range(_NUM_ROWS):
        stars = draw(1, 11) / 2 if halves else draw(1, 6)
        yield separator.join([str(draw(1, 40)), str(draw(1, 90)), str(stars), str(978_300_760 + 60 * i)])


def _lines(path: Path, lines: Iterator[str], header: str = "", line_end: str = "\n") -> Path:
    path.parent.mkdir(exist_ok=True)
    text = "".join(line + line_end for line in [*([header] if header else []), *lines])
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def _avazu(folder: Path) -> Path:
    csv = write_clicks(folder / "clicks.csv", num_rows=_NUM_ROWS)
    (folder / "train.gz").write_bytes(gzip.compress(csv.read_bytes()))
    return folder / "train.gz"


def _products(*, item_first: bool) -> Iterator[str]:
    draw = np.random.default_rng(0).integers
    for i in range(_NUM_ROWS):
        pair = [f"A{draw(1, 40):013d}", f"B{draw(1, 90):09d}"]
        yield ",".join(
            [*(reversed(pair) if item_first else pair), f"{draw(1, 6)}.0", str(978_300_760 + 60 * i)]
        )


_MOVIES = ("userId", "movieId")
_CATEGORIES = tuple(f"C{i}" for i in range(1, 27))
_FILES: list[tuple[str, Callable[[Path], Path], str, tuple[str, ...], int]] = [
    ("avazu", _avazu, "click", ("C1", "banner_pos", "site_id"), 1),
    ("criteo", lambda f: _lines(f / "train.txt", _criteo()), "label", _CATEGORIES, 13),
    ("criteo-day", lambda f: _lines(f / "day_0.gz", _criteo()), "label", _CATEGORIES, 13),
    ("criteo-tsv", lambda f: _lines(f / "day_0.tsv", _criteo()), "label", _CATEGORIES, 13),
    (
        "amazon-2014",
        lambda f: _lines(f / "ratings_Toys.csv", _products(item_first=False)),
        *("rating", ("user_id", "item_id"), 0),
    ),
    (
        "amazon-2018",
        lambda f: _lines(f / "Toys.csv", _products(item_first=True)),
        *("rating", ("item_id", "user_id"), 0),
    ),
    ("movielens-100k", lambda f: _lines(f / "u.data", _ratings("\t", halves=False)), "rating", _MOVIES, 0),
    ("movielens-1m", lambda f: _lines(f / "ratings.dat", _ratings("::", halves=False)), "rating", _MOVIES, 0),
    ("movielens-10m", lambda f: _lines(f / "ratings.dat", _ratings("::", halves=True)), "rating", _MOVIES, 0),
    (
        "movielens-25m",
        lambda f: _lines(
            f / "ratings.csv", _ratings(",", halves=True), "userId,movieId,rating,timestamp", "\r\n"
        ),
        "rating",
        _MOVIES,
        0,
    ),
]


@pytest.mark.parametrize(
    ("write", "label", "features", "num_dense"), [pytest.param(*rest, id=name) for name, *rest in _FILES]
)
def test_published_files_train(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    write: Callable[[Path], Path],
    label: str,
    features: tuple[str, ...],
    num_dense: int,
) -> None:
    argv = ["--data", str(write(tmp_path)), "--out", str(tmp_path / "m.pt"), "--json", "--epochs", "1"]
    assert train_main([*argv, "--embedding-dim", "4", "--dense-layers", "8", "--over-layers", "8"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_train_rows"] + found["num_held_out_rows"] == _NUM_ROWS
    schema = Schema.from_json(load_checkpoint(tmp_path / "m.pt").arguments["inputs"])
    assert schema.label_names == (label,)
    assert schema.feature_names[: len(features)] == features
    assert len(schema.dense) == num_dense


def test_criteos_test_file_is_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, model = _lines(tmp_path / "train.txt", _criteo()), tmp_path / "model.pt"
    argv = ["--data", str(train), "--out", str(model), "--epochs", "1", "--embedding-dim", "4"]
    assert train_main([*argv, "--dense-layers", "8", "--over-layers", "8"]) == 0, capsys.readouterr().err
    assert export_main([str(model), "--dtype", "fp32", "--out", str(tmp_path / "model.artifact")]) == 0
    # Published without labels: the same rows, without their first field.
    test = _lines(tmp_path / "test.txt", (line.partition("\t")[2] for line in _criteo()))
    for path in (train, test):
        argv = [str(tmp_path / "model.artifact"), "--data", str(path), "--keep", "C1"]
        assert predict_main([*argv, "--out", str(path.with_suffix(".parquet"))]) == 0, capsys.readouterr().err
    assert parquet.read_table(tmp_path / "train.parquet") == parquet.read_table(tmp_path / "test.parquet")
    assert parquet.read_metadata(tmp_path / "test.parquet").num_rows == _NUM_ROWS


def test_criteos_first_line_is_data(tmp_path: Path) -> None:
    lines = list(_criteo())
    path = _lines(tmp_path / "train.txt", iter(lines))
    schema = infer(path).schema
    assert {table.strings for table in schema.tables} == {"xxh64"}
    (block,) = table_dataset(path, schema).train()
    first = lines[0].split("\t")
    examples = all_of(block)
    assert len(examples) == 270
    assert examples.labels[0, 0] == float(first[0])
    expected = [float(number) if number else np.nan for number in first[1:14]]
    np.testing.assert_array_equal(examples.dense[0], np.array(expected, np.float32))


def test_users_of_ali_ccp_are_no_table_of_examples(tmp_path: Path) -> None:
    users = ["84dceed2e3a667f8,2,101\x0231\x031.0\x01121\x027\x031.0"]
    path = _lines(tmp_path / "common_features_train.csv", iter(users))
    with pytest.raises(DataError, match="which looks like data, expected a line with the columns' names"):
        infer(path)


def test_wrong_lines_of_files_without_header_are_named(tmp_path: Path) -> None:
    lines = [*_ratings("::", halves=False)]
    path = _lines(tmp_path / "ratings.dat", iter([*lines[:4], "1::2::3", *lines]))
    with pytest.raises(DataError, match=r"ratings.dat, line 5: got 5 fields, expected 7"):
        infer(path)
    bad = lines[4].replace("::9783", "::x")
    path = _lines(tmp_path / "ratings.dat", iter([*lines[:4], bad, *lines]))
    with pytest.raises(
        DataError, match=r"ratings.dat, line 5: column 'timestamp': got 'x01000', expected a number"
    ):
        table_dataset(path, infer(_lines(tmp_path / "good" / "ratings.dat", iter(lines))).schema)


def test_patterns_and_folders_of_hive_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = list(_ratings(",", halves=False))
    for day in range(3):
        part = iter(lines[day * 100 : day * 100 + 100])
        _lines(tmp_path / f"day={day}" / "ratings.csv", part, "userId,movieId,rating,timestamp")
    for data, num_rows in (("", 300), ("day=[01]", 200), ("day=*/*.csv", 300)):
        argv = ["--data", str(tmp_path / data), "--out", str(tmp_path / "m.pt"), "--json", "--epochs", "1"]
        assert train_main([*argv, "--embedding-dim", "4", "--over-layers", "8"]) == 0, capsys.readouterr().err
        found = json.loads(capsys.readouterr().out)
        assert found["num_train_rows"] + found["num_held_out_rows"] == num_rows
    schema = Schema.from_json(load_checkpoint(tmp_path / "m.pt").arguments["inputs"])
    assert schema.feature_names[:2] == ("userId", "movieId")
    # One day's folder alone has the same columns.
    for data in ("", "day=1", "day=?/ratings.csv"):
        assert infer(tmp_path / data).columns[-1].name == "day"
    assert train_main(["--data", str(tmp_path / "*.orc"), "--out", str(tmp_path / "m.pt")]) == 2
    assert "*.orc: got no files of such names" in capsys.readouterr().err
