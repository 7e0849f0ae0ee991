"""The comparison of trainers runs without public ones, and its tables are what they should be; nothing about speed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.measure.bars import Bar
from benchmarks.trainers.public import cli
from benchmarks.trainers.public.histories import histories, write_histories
from benchmarks.trainers.public.plain import read_rows
from benchmarks.trainers.public.tables import click_log, criteo, movielens, write_task
from benchmarks.trainers.public.task import TABLE_FILE, Rows, Task
from benchmarks.trainers.public.turns import OURS, PLAIN, Measured, Trainer, Turns, take_turns
from recsys.data.lines import DataError
from recsys.data.next_items import NextItemColumns, next_item_dataset
from recsys.inputs.schema import Schema

USERS = ["user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token"]
ITEMS = ["item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq"]
RATINGS = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    users = [f"{i}\t{20 + i}\t{'MF'[i % 2]}\twriter\t0{i}" for i in range(6)]
    items = [f"{i}\tTitle\t{1990 + i}\t{['Drama', 'Comedy Drama'][i % 2]}" for i in range(5)]
    rated = [f"{i % 6}\t{i % 5}\t{1 + i % 5}\t{100 - i}" for i in range(60)]
    for kind, lines in {"user": USERS + users, "item": ITEMS + items, "inter": RATINGS + rated}.items():
        (tmp_path / f"small.{kind}").write_text("\n".join([*lines, ""]))
    return tmp_path / "small"


def test_the_command_runs_without_public_trainers(
    ratings: Path, report_of: Callable[..., dict[str, Any]]
) -> None:
    report = report_of(cli.main, "--movielens", str(ratings), "--table", "movielens", "--epochs", "1")
    (table,) = report["tables"]
    found = {one["name"]: one for one in table["trainers"]}
    assert list(found) == [PLAIN, OURS, "DeepCTR-Torch", "RecBole"]
    assert table["num_train_rows"] == 54
    assert table["limit"] > 0
    for name in (PLAIN, OURS):
        assert found[name]["error"] == ""
        assert len(found[name]["wall_s"]) == len(found[name]["cpu_s"]) == 1
        assert 0 <= found[name]["qualities"][0]["auc"] <= 1
    assert found["RecBole"]["error"] == "--peers-python names no Python that has it"
    assert [bar["text"] for bar in report["bars"]] == [
        "MovieLens, rows: recsys-train ÷ plain PyTorch",
        "MovieLens, AUC: recsys-train - plain PyTorch",
    ]


def test_ratings_are_in_the_order_of_time(ratings: Path) -> None:
    table, schema = movielens(ratings.with_suffix(".inter"))
    assert table.column("click").to_pylist()[:3] == [1, 1, 0]  # ratings 5, 4 and 3 of the last lines
    assert table.column("class").to_pylist()[:2] == [[1], [0, 1]]
    assert {spec.name: spec.num_embeddings for spec in schema.tables}["class"] == 2


def test_next_items_are_learned_once(ratings: Path, tmp_path: Path) -> None:
    users = histories(movielens(ratings)[0])
    assert [len(items) for items in users] == [10] * 6
    long = np.arange(50) % 5
    task, num_learned = write_histories("next", [*users, long], tmp_path)
    assert num_learned == 6 * 8 + 48
    columns = NextItemColumns(history="seen", target="next_item")
    dataset = next_item_dataset(tmp_path / TABLE_FILE, Schema.from_json(task.schema), columns)
    assert (dataset.num_train_rows, dataset.num_held_out_rows) == (6 + 3, 7)
    (block,) = dataset.train()
    seen = block.take(np.arange(len(block))).bags["seen"]
    assert len(seen.values) == num_learned  # each row's first item is not learned, and its last is the target
    (block,) = dataset.held_out()
    held_out = Rows.load(tmp_path, "held_out")
    np.testing.assert_array_equal(block.take(np.arange(7)).bags["next_item"].values, held_out.ids[:, 0])
    assert held_out.lists["seen"].shape == (7, task.sequence.max_history)


def test_a_file_of_ratings_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"got no file ml\.inter"):
        movielens(tmp_path / "ml")


@pytest.mark.parametrize("has_header", [False, True])
def test_a_file_of_criteo(has_header: bool, tmp_path: Path) -> None:
    separator = "," if has_header else "\t"
    lines = [["label"] + ["x"] * 39] if has_header else []
    lines += [
        [str(i % 2), "", "-1", *["7.0" if has_header else "7"] * 11, "", *["05db9164"] * 25]
        for i in range(20)
    ]
    path = tmp_path / "clicks"
    path.write_text("\n".join(separator.join(line) for line in lines) + "\n")
    table, _ = criteo(path, 10)
    assert table.num_rows == 10
    assert [table.column(name)[0].as_py() for name in ("n0", "n1", "n2", "c0", "c1")] == [
        None,
        0,
        7,
        "missing",
        "05db9164",
    ]


def test_the_plain_loop_reads_what_recsys_train_reads(ratings: Path, tmp_path: Path) -> None:
    for number, (table, schema) in enumerate((movielens(ratings), click_log(200))):
        folder = tmp_path / str(number)
        folder.mkdir()
        task = write_task("table", table, schema, folder)
        assert Task.load(folder) == task
        expected = Rows.load(folder, "train")
        found = read_rows(folder / TABLE_FILE, task, len(expected))
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_allclose(found.dense, expected.dense, rtol=1e-6)
        np.testing.assert_array_equal(found.labels, expected.labels)
        for name, lists in expected.lists.items():
            np.testing.assert_array_equal(found.lists[name], lists)


def test_a_trainer_that_does_not_start_has_a_row_that_says_why(tmp_path: Path) -> None:
    task = Task(name="none", num_dense=0, features={}, lists={}, schema={})
    turns = Turns(
        peers_python=Path("/bin/false"), num_epochs=1, quality=lambda _: {}, progress=lambda _: None
    )
    (found,) = take_turns([Trainer(name="peer", module="deepctr", is_public=True)], task, tmp_path, turns)
    assert found.error == "its process ended with 1"


def test_the_bars() -> None:
    task = Task(name="t", num_dense=0, features={}, lists={}, schema={})
    measured = [
        Measured(name=PLAIN, cpu_s=[3.0, 1.0, 2.0], qualities=[{"auc": 0.7}, {"auc": 0.75}, {"auc": 0.5}]),
        Measured(name=OURS, cpu_s=[1.0, 1.0, 1.0], qualities=[{"auc": 0.5}, {"auc": 0.5}, {"auc": 0.5}]),
        Measured(name="peer", error="ImportError"),
    ]
    bars = cli.bars_of(cli.Comparison(task=task, num_train_rows=10, measured=measured))
    assert bars == [
        Bar("t, rows: recsys-train ÷ plain PyTorch", 1.5, 2.0),
        Bar("t, AUC: recsys-train - plain PyTorch", -cli.QUALITY_TOLERANCES["auc"], -0.25),
    ]
    assert [bar.is_met for bar in bars] == [True, False]


def test_the_qualities_of_scores() -> None:
    labels, groups = np.array([1.0, 0.0, 1.0, 1.0]), np.array([0, 0, 1, 1])
    assert cli.quality(np.array([2.0, 1.0, 0.0, 0.5]), labels=labels, groups=groups) == {
        "auc": pytest.approx(1 / 3),
        "gauc": 1.0,
    }
