"""The MovieLens readers on small files in all three forms; the features; the real data."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recsys.data.examples import Bags, Dataset, Examples
from recsys.data.lines import DataError
from recsys.data.sources.movielens import DENSE_NAMES, SMOOTHING, movielens
from recsys.data.sources.movielens_files import CLASSIC_GENRES, read_movielens
from recsys.train.commands.defaults import DEFAULTS
from tests.recsys.data.blocks import all_of
from tests.support.shared_data import data_file
from tests.support.training import train

# user, item, rating, timestamp; not in the order of time, with ties at 300
_RATINGS = [
    (1, 1, 5, 100),
    (2, 1, 3, 200),
    (1, 2, 4, 300),
    (1, 3, 2, 300),
    (2, 2, 5, 250),
    (2, 3, 4, 400),
    (1, 1, 5, 500),
    (3, 2, 4, 600),
    (1, 3, 4, 700),
    (2, 1, 5, 650),
]
_ITEMS = {1: ("Toy Story", 1995, "Animation Comedy"), 2: ("Heat", 1985, "Crime"), 3: ("Other", None, "")}
_USERS = {1: (24, "M", "writer", "85711"), 2: (53, "F", "other", "94043"), 3: (17, "M", "writer", "T8H1N")}


def _write_lines(path: Path, lines: list[str], encoding: str = "utf-8") -> None:
    path.write_text("".join(line + "\n" for line in lines), encoding=encoding)


def _write_atomic(folder: Path) -> None:
    ratings = ["\t".join(map(str, row)) for row in _RATINGS]
    _write_lines(
        folder / "ml.inter", ["user_id:token\titem_id:token\trating:float\ttimestamp:float", *ratings]
    )
    items = [f"{i}\t{title}\t{year or ''}\t{genres}" for i, (title, year, genres) in _ITEMS.items()]
    _write_lines(
        folder / "ml.item",
        ["item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq", *items],
    )
    users = ["\t".join(map(str, (user, *about))) for user, about in _USERS.items()]
    _write_lines(
        folder / "ml.user",
        ["user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token", *users],
    )


def _write_classic(folder: Path) -> None:
    _write_lines(folder / "u.data", ["\t".join(map(str, row)) for row in _RATINGS])
    _write_lines(folder / "u.user", ["|".join(map(str, (user, *about))) for user, about in _USERS.items()])
    items = []
    for item, (title, year, genres) in _ITEMS.items():
        flags = "|".join("1" if genre in genres.split() else "0" for genre in CLASSIC_GENRES)
        date = f"01-Jan-{year}" if year else ""
        items.append(f"{item}|{title} é|{date}||http://example.com|{flags}")
    _write_lines(folder / "u.item", items, encoding="latin-1")


def _write_million(folder: Path) -> None:
    _write_lines(folder / "ratings.dat", ["::".join(map(str, row)) for row in _RATINGS])
    items = [
        f"{item}::{title} é{f' ({year})' if year else ''}::{'|'.join(genres.split()) or 'unknown'}"
        for item, (title, year, genres) in _ITEMS.items()
    ]
    _write_lines(folder / "movies.dat", items, encoding="latin-1")
    users = [
        "::".join(map(str, (user, gender, age, occupation, code)))
        for user, (age, gender, occupation, code) in _USERS.items()
    ]
    _write_lines(folder / "users.dat", users)


_FORMS = pytest.mark.parametrize(
    "write", [_write_atomic, _write_classic, _write_million], ids=["atomic", "classic", "million"]
)


def _all(dataset: Dataset) -> Examples:
    """All examples, by time."""
    (train_part,), (held_out,) = map(all_of, dataset.train()), map(all_of, dataset.held_out())
    joined = {}
    for name, bags in train_part.bags.items():
        joined[name] = Bags.from_lists([*_lists(bags), *_lists(held_out.bags[name])])
    return Examples(
        dense=np.concatenate([train_part.dense, held_out.dense]),
        bags=joined,
        labels=np.concatenate([train_part.labels, held_out.labels]),
    )


def _lists(bags: Bags) -> list[list[int]]:
    return [bags.values[a:b].tolist() for a, b in zip(bags.offsets[:-1], bags.offsets[1:], strict=True)]


@_FORMS
def test_every_form_gives_the_same(tmp_path: Path, write) -> None:  # type: ignore[no-untyped-def]
    write(tmp_path)
    data = read_movielens(tmp_path)
    assert data.ratings.times.tolist() == [100, 200, 250, 300, 300, 400, 500, 600, 650, 700]
    assert data.ratings.users.tolist() == [1, 2, 2, 1, 1, 2, 1, 3, 2, 1]
    assert data.ratings.items.tolist() == [1, 1, 2, 2, 3, 3, 1, 2, 1, 3]
    assert data.ratings.likes.tolist() == [1, 0, 1, 1, 0, 1, 1, 1, 1, 1]
    assert set(data.items[1].genres) == {"Animation", "Comedy"}
    assert [data.items[i].year for i in (1, 2, 3)] == [1995, 1985, None]
    user = data.users[3]
    assert (user.age, user.gender, user.occupation, user.zip_code) == (17, "M", "writer", "T8H1N")


@_FORMS
def test_features(tmp_path: Path, write) -> None:  # type: ignore[no-untyped-def]
    write(tmp_path)
    dataset = movielens(tmp_path)
    assert (dataset.num_train_rows, dataset.num_held_out_rows) == (9, 1)
    examples = _all(dataset)
    assert _lists(examples.bags["user"]) == [[u] for u in (1, 2, 2, 1, 1, 2, 1, 3, 2, 1)]
    assert _lists(examples.bags["zip_region"])[:2] + _lists(examples.bags["zip_region"])[7:8] == [
        [8],
        [9],
        [],
    ]
    assert _lists(examples.bags["age_group"])[:2] + _lists(examples.bags["age_group"])[7:8] == [[1], [5], [0]]
    assert _lists(examples.bags["gender"])[:2] == [[1], [0]]  # F, M
    assert _lists(examples.bags["occupation"])[:2] == [[1], [0]]  # other, writer
    assert [len(bag) for bag in _lists(examples.bags["genre"])][:3] == [2, 2, 1]
    year, age = DENSE_NAMES.index("release_year"), DENSE_NAMES.index("age")
    assert examples.dense[:3, year] == pytest.approx([0.5, 0.5, 1.5])
    assert examples.dense[:2, age] == pytest.approx([-0.6, 2.3])
    limits = {feature: t.num_embeddings for t in dataset.tables for feature in t.feature_names}
    assert set(limits) == set(examples.bags)
    for feature, bags in examples.bags.items():
        assert 0 <= bags.values.min() <= bags.values.max() < limits[feature]


def test_history_is_of_strictly_earlier_training_ratings(tmp_path: Path) -> None:
    _write_atomic(tmp_path)
    examples = _all(movielens(tmp_path))
    # User 1 likes 1 at 100, 2 at 300 (with 3, not liked, at the same time), 1 at 500.
    assert _lists(examples.bags["liked_items"]) == [[], [], [], [1], [1], [2], [1, 2], [], [2, 3], [1, 2, 1]]
    num_item, num_user = DENSE_NAMES.index("item_num_ratings"), DENSE_NAMES.index("user_num_ratings")
    assert np.expm1(examples.dense[:, num_item]).round().tolist() == [0, 1, 0, 1, 0, 1, 2, 2, 3, 2]
    assert np.expm1(examples.dense[:, num_user]).round().tolist() == [0, 0, 1, 1, 1, 2, 3, 0, 3, 4]
    mean = 7 / 9
    likes = 1 + SMOOTHING * mean  # item 1 was liked once, not liked once before time 500
    expected = math.log(likes / (2 + SMOOTHING - likes))
    assert examples.dense[6, DENSE_NAMES.index("item_like_rate")] == pytest.approx(expected, rel=1e-6)


def test_no_held_out_label_and_nothing_of_the_future_is_in_the_features(tmp_path: Path) -> None:
    num_rows, num_train = 60, 54
    ratings = [(i % 3 + 1, i % 2 + 1, 5 if i % 5 else 1, i // 2) for i in range(num_rows)]
    _write_atomic(tmp_path)
    header = "user_id:token\titem_id:token\trating:float\ttimestamp:float"

    def features(rows: list[tuple[int, int, int, int]]) -> Examples:
        _write_lines(tmp_path / "ml.inter", [header, *("\t".join(map(str, row)) for row in rows)])
        return _all(movielens(tmp_path))

    def flip(row: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
        return (*row[:2], 6 - row[2], row[3])

    before = features(ratings)
    for start, same in ((num_train, num_rows), (30, 32)):
        # The mean rate of the training part is a constant of the features: keep it by flipping a pair of labels.
        changed = [flip(row) if i >= start else row for i, row in enumerate(ratings)]
        after = features(changed)
        assert not np.array_equal(before.labels, after.labels)
        rates = [0, 2] if start < num_train else []
        columns = [c for c in range(len(DENSE_NAMES)) if c not in rates]
        assert np.array_equal(before.dense[:same, columns], after.dense[:same, columns])
        for name, bags in before.bags.items():
            assert _lists(bags)[:same] == _lists(after.bags[name])[:same]


@pytest.mark.parametrize(
    ("name", "line", "text"),
    [
        pytest.param("u.data", "1\t1\t5", r"u\.data, line 11: got 3 fields, expected 4", id="fields"),
        pytest.param("u.data", "x\t1\t5\t1", r"u\.data, line 11: user: got 'x'", id="user"),
        pytest.param("u.data", "1\t-1\t5\t1", r"u\.data, line 11: item: got '-1'", id="item"),
        pytest.param("u.data", "1\t1\t6\t1", r"u\.data, line 11: rating: got '6'", id="rating"),
        pytest.param("u.data", "1\t1\tnan\t1", r"u\.data, line 11: rating: got 'nan'", id="nan"),
        pytest.param("u.data", "1\t1\t5\t1e99", r"u\.data, line 11: timestamp: got '1e99'", id="time"),
        pytest.param("u.data", f"{2**70}\t1\t5\t1", r"u\.data, line 11: user", id="huge"),
        pytest.param("u.data", "9\t1\t5\t1", r"users \[9\] have ratings but no line", id="unknown-user"),
        pytest.param("u.data", "1\t9\t5\t1", r"items \[9\] have ratings but no line", id="unknown-item"),
        pytest.param("u.user", "4|x|M|writer|1", r"u\.user, line 4: age: got 'x'", id="age"),
        pytest.param("u.item", "4|t|d|v|u|" + "|".join("2" * 19), r"u\.item, line 4: genres", id="flags"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, name: str, line: str, text: str) -> None:
    _write_classic(tmp_path)
    with (tmp_path / name).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=text):
        movielens(tmp_path)


@pytest.mark.parametrize("name", ["u.item", "u.user"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    _write_classic(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(DataError, match=f"{name}: no such file"):
        movielens(tmp_path)


def test_folders_without_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no \*\.inter, u\.data or ratings\.dat"):
        movielens(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        movielens(tmp_path / "nowhere")
    _write_lines(tmp_path / "u.data", [])
    with pytest.raises(DataError, match="no ratings"):
        movielens(tmp_path)


def test_limit_rows_keeps_the_first_by_time(tmp_path: Path) -> None:
    _write_classic(tmp_path)
    dataset = movielens(tmp_path, limit_rows=4)
    assert (dataset.num_train_rows, dataset.num_held_out_rows) == (3, 1)
    assert _all(dataset).labels.tolist() == [[1], [0], [1], [1]]


def test_popularity_by_hand(tmp_path: Path) -> None:
    lines = [f"{u}\t{i}\t{r}\t{t}" for t, (u, i, r) in enumerate([(1, 1, 5)] * 9 + [(1, 2, 1)] * 9)]
    _write_classic(tmp_path)
    _write_lines(tmp_path / "u.data", [*lines, "1\t1\t5\t50", "1\t2\t1\t51"])
    dataset = movielens(tmp_path)
    reference = dataset.reference()
    assert reference is not None
    assert (reference.name, reference.auc) == ("popularity", 1.0)


@pytest.fixture(scope="module")
def real() -> Dataset:
    return movielens(data_file("ml-100k.inter").parent)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_model_beats_popularity_on_movielens_100k(real: Dataset, seed: int) -> None:
    assert (real.num_train_rows, real.num_held_out_rows) == (90_000, 10_000)
    reference = real.reference()
    assert reference is not None
    assert reference.auc is not None
    assert reference.auc > 0.7
    defaults = DEFAULTS["movielens"]
    _, epochs = train(real, defaults.model, replace(defaults.train, seed=seed))
    assert epochs[-1].held_out.auc is not None
    assert epochs[-1].held_out.auc > reference.auc + 0.005
    assert 0.8 < (epochs[-1].held_out.calibration or 0) < 1.2
