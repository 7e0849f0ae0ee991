"""Tables of many files: folders, Hive's folders, patterns, lists; hidden and empty files are none of them."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import feather, orc, parquet

from recsys.data.lines import DataError
from recsys.data.tables.dataset import table_dataset
from recsys.data.tables.infer import infer
from recsys.data.tables.reading.files import open_files
from recsys.data.tables.reading.sample import sample_rows

_ROWS = [{"click": i % 2, "user": i, "site": f"s{i % 7}"} for i in range(40)]


def _csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("click,user,site\n" + "".join(",".join(map(str, row.values())) + "\n" for row in rows))
    return path


def _values(data: Any, *columns: str) -> list[tuple[Any, ...]]:
    tables = [piece.read(columns) for file in open_files(data) for piece in file.pieces()]
    return [tuple(row.values()) for table in tables for row in table.to_pylist()]


def _users(data: Any) -> list[int]:
    return [int(user) for (user,) in _values(data, "user")]


def test_hidden_and_empty_files_are_left_out(tmp_path: Path) -> None:
    for part in range(4):
        _csv(tmp_path / f"part-{part}.csv", _ROWS[part * 10 : part * 10 + 10])
    for name in (
        "_SUCCESS",
        ".part-0.csv.crc",
        "_temporary/0/part-9.csv",
        "part-8.csv",
        "readme.md",
        ".x.csv",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"" if "8" in name or "S" in name else b"no data")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "self.csv").symlink_to(tmp_path / "self.csv")
    _csv(tmp_path / "part-7.csv", [])  # a header alone
    assert _users(tmp_path) == list(range(40))
    assert table_dataset(tmp_path, infer(tmp_path).schema).num_train_rows == 36
    for path in tmp_path.glob("part-?.csv"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="got 6 empty files that end in"):
        open_files(tmp_path)


def test_folders_of_hive_are_columns(tmp_path: Path) -> None:
    for day in (1, 2):
        for hour in ("0", "a%20b", "__HIVE_DEFAULT_PARTITION__"):
            folder = tmp_path / f"day=2026-01-0{day}" / f"hour={hour}"
            _csv(folder / "part.csv", _ROWS[day * 3 : day * 3 + 2])
            parquet.write_table(pa.Table.from_pylist(_ROWS[:2]), folder / "part.parquet")
    found = _values(tmp_path, "hour", "user", "day")
    assert len(found) == 24
    assert found[0] == ("0", "3", "2026-01-01")
    assert [row[0] for row in found[:12:4]] == ["0", None, "a b"]
    assert _values(tmp_path, "day")[-1] == ("2026-01-02",)
    (tmp_path / "day=2026-01-01" / "hour=0" / "part.csv").write_text("click,user,site\n1,2,3\n4\n")
    with pytest.raises(DataError, match=r"day=2026-01-01/hour=0/part.csv, line 3: got 1 fields"):
        list(open_files(tmp_path)[0].pieces())


def test_a_column_of_the_file_goes_before_the_folders(tmp_path: Path) -> None:
    _csv(tmp_path / "site=x" / "a.csv", _ROWS[:1])
    assert _values(tmp_path, "site") == [("s0",)]


def _write(path: Path) -> None:
    table = pa.Table.from_pylist(_ROWS)
    kind = path.suffixes[0]
    if kind == ".orc":
        orc.write_table(table, path)
    elif kind == ".feather":
        feather.write_feather(table, path, compression="zstd", chunksize=16)
    elif kind == ".arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=9)
    elif kind == ".parquet":
        parquet.write_table(table, path, row_group_size=11)
    else:
        text = "".join(json.dumps(row) + "\n" for row in _ROWS).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


@pytest.mark.parametrize("suffix", [".orc", ".feather", ".arrow", ".parquet", ".jsonl", ".json.gz"])
def test_formats_are_known_by_their_content(tmp_path: Path, suffix: str) -> None:
    _write(tmp_path / f"a{suffix}")
    if suffix != ".json.gz":
        (tmp_path / f"a{suffix}").rename(tmp_path / "data")
    path = next(tmp_path.iterdir())
    assert _values(path, "site", "user") == [(row["site"], row["user"]) for row in _ROWS]
    (file,) = open_files(path)
    assert list(file.types) == ["click", "user", "site"]
    assert next(piece.place(0) for piece in file.pieces()).startswith(path.name)


def test_patterns_and_lists(tmp_path: Path) -> None:
    for part in range(3):
        _csv(tmp_path / f"day-{part}.csv", _ROWS[part * 10 : part * 10 + 10])
    (tmp_path / "sub").mkdir()
    _write(tmp_path / "sub" / "b.orc")
    assert _users(str(tmp_path / "day-[01].csv")) == list(range(20))
    assert _users(tmp_path / "*-2.csv") == list(range(20, 30))
    assert len(_users(tmp_path / "*")) == 70
    assert _users([tmp_path / "day-2.csv", str(tmp_path / "day-0.csv")]) == [*range(20, 30), *range(10)]
    with pytest.raises(DataError, match="got no files of such names"):
        open_files(tmp_path / "*.parquet")
    _csv(tmp_path / "odd[1].csv", _ROWS[:1])
    assert _users(tmp_path / "odd[1].csv") == [0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            '{"a": 1}\n\n{"a":\n', r"x.jsonl, line 3: not an object of JSON \(Invalid value", id="cut"
        ),
        pytest.param('{"a": 1}\n[1]\n', r"x.jsonl, line 2: not an object of JSON", id="array"),
        pytest.param('[{"a": 1},\n{"a": 2}]', r"x.jsonl, line 1: got a list of JSON", id="list"),
        pytest.param(
            '{"a": 1}\n{"a": "x"}\n', r"x.jsonl, line 2: not an object .*from number to string", id="types"
        ),
        pytest.param('{"a": 1, "a": 2}\n', r"x.jsonl, line 1: .*twice", id="doubled"),
        pytest.param('{"a": 1}\n{"a": "\udcff"}\n', r"x.jsonl, line 2: not UTF-8 text", id="latin-1"),
        pytest.param('{"a":' * 100_000, r"x.jsonl, line 1", id="deep"),
    ],
)
def test_wrong_lines_of_json_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=message):
        [piece.read(["a"]) for piece in open_files(path)[0].pieces()]


def test_later_blocks_of_json_may_have_fractions_and_lack_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recsys.data.tables.reading.json_file._BLOCK_BYTES", 16)
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1, "b": 2}\n\n{"a": 1.5}\n{"b": 3}\n{"a": 4, "c": []}\n')
    assert _values(path, "b", "a") == [(2, 1), (None, 1.5), (3, None), (None, 4)]
    places = [piece.place(row) for piece in open_files(path)[0].pieces() for row in range(piece.num_rows)]
    assert places == [f"x.jsonl, line {line}" for line in (1, 3, 4, 5)]


def test_the_sample_is_taken_from_all_files(tmp_path: Path) -> None:
    for part in range(30):
        _csv(tmp_path / f"part-{part:02}.csv", [{"click": 0, "user": part, "site": "s"}] * 50)
    sample = sample_rows(open_files(tmp_path), 160)
    users = [int(user) for user in sample.column("user").to_pylist()]
    assert len(users) == 160
    assert users == sorted(users)
    assert {0, 29} <= set(users)
    assert len(set(users)) == 16
    # Labels of the last file alone are seen.
    _csv(tmp_path / "part-29.csv", [{"click": 1, "user": 1, "site": "s"}] * 50)
    assert set(sample_rows(open_files(tmp_path), 160).column("click").to_pylist()) == {"0", "1"}
    assert sample_rows(open_files(tmp_path), 10_000).num_rows == 1500


def test_the_sample_of_one_file_is_of_several_row_groups(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"x": range(1000)}), tmp_path / "a.parquet", row_group_size=100)
    found = sample_rows(open_files(tmp_path), 100).column("x").to_pylist()
    assert len(found) == 100
    assert {value // 100 for value in found} == {0, 4, 8, 9}


def test_files_of_other_columns_and_types(tmp_path: Path) -> None:
    shared = {name: [0] for name in "uvw"}
    parquet.write_table(
        pa.table({"x": pa.array([1], pa.int32()), "y": [1], **shared}), tmp_path / "a.parquet"
    )
    parquet.write_table(pa.table({"x": pa.array([2], pa.int64()), **shared}), tmp_path / "b.parquet")
    parquet.write_table(
        pa.table({**shared, "x": pa.array([3], pa.uint8()), "z": pa.array(["t"]).dictionary_encode()}),
        tmp_path / "b2.parquet",
    )
    sample = sample_rows(open_files(tmp_path), 9)
    assert sample.select(["x", "y", "z"]).to_pydict() == {
        "x": [1, 2, 3],
        "y": [1, None, None],
        "z": [None, None, "t"],
    }
    parquet.write_table(pa.table({"x": ["4"], **shared}), tmp_path / "c.parquet")
    assert sample_rows(open_files(tmp_path), 9).column("x").to_pylist() == ["1", "2", "3", "4"]
    parquet.write_table(pa.table({"x": [[5]], **shared}), tmp_path / "d.parquet")
    with pytest.raises(DataError, match="columns of one name and other types"):
        sample_rows(open_files(tmp_path), 9)


def test_doubled_names(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a.parquet: column 'x' is named more than once"):
        open_files(tmp_path)
    with pytest.raises(DataError, match=r"data: column 'x' is named more than once"):
        open_files(table)


def test_uses_follow_the_types_of_recboles_headers(tmp_path: Path) -> None:
    path = tmp_path / "a.inter"
    header = "user_id:token\tage:token\tzip:token\tseen:token_seq\tweight_class:float\trating:float\ttimestamp:float\n"
    rows = [
        f"{i % 40}\t{i % 30}\t0{i % 9}\ta{i % 5} b{i % 3}\t{i % 6}\t{i % 5 + 1}\t{10**9 + i}\n"
        for i in range(400)
    ]
    path.write_text(header + "".join(rows))
    inferred = infer(path)
    uses = {column.name: column.use for column in inferred.columns}
    assert uses == {
        **dict.fromkeys(("user_id", "age", "zip", "seen"), "sparse"),
        **{"weight_class": "dense", "rating": "label", "timestamp": "time"},
    }
    strings = {table.name: table.strings for table in inferred.schema.tables}
    assert strings == {"user_id": "", "age": "", "zip": "xxh64", "seen": "xxh64"}
    assert "as the header says" in inferred.columns[1].reason
    assert table_dataset(path, inferred.schema).num_train_rows == 360


@pytest.mark.parametrize("suffix", [".orc", ".feather", ".parquet", ".jsonl", ".json.gz", ".csv"])
def test_damaged_files_are_refused_in_one_line(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    if suffix == ".csv":
        _csv(path, _ROWS)
    else:
        _write(path)
    content = path.read_bytes()
    draw = random.Random(0)
    refused = []
    for _ in range(60):
        damaged = bytearray(content)
        for _ in range(draw.randrange(1, 5)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        cut = draw.choice([len(damaged), draw.randrange(1, len(damaged))])
        path.write_bytes(damaged[:cut])
        try:
            for piece in (piece for file in open_files(path) for piece in file.pieces()):
                piece.read(["user"])
        except DataError as error:
            refused.append(str(error))
    assert refused
    assert not [text for text in refused if "\n" in text or len(text) > 400]
