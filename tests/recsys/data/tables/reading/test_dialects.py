"""Text files as databases and spreadsheets write them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from recsys.data.examples import Examples
from recsys.data.lines import DataError
from recsys.data.tables.dataset import rows_of
from recsys.data.tables.infer import Inferred, infer
from recsys.data.tables.reading.files import open_files
from recsys.data.tables.reading.sample import sample_rows

_ROWS = 200


def _found(inferred: Inferred, name: str) -> tuple[str, str]:
    (column,) = (column for column in inferred.columns if column.name == name)
    return column.use, column.reason


def test_nulls_of_databases_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "dump.tsv"
    lines = [
        f"{i % 2}\t{'' if i % 5 else chr(92) + 'N'}\t{chr(92) + 'N' if i % 4 == 0 else 7 * (i % 9)}\n"
        for i in range(_ROWS)
    ]
    texts = [line.replace("\t\t", f"\tc{i % 3}\t") for i, line in enumerate(lines)]
    path.write_text("click\tcountry\tuser_id\n" + "".join(texts))
    schema = infer(path).schema
    (block,) = rows_of(path, schema)
    examples = block.take(np.arange(_ROWS))
    assert np.diff(examples.bags["country"].offsets).tolist() == [int(i % 5 != 0) for i in range(_ROWS)]
    assert np.diff(examples.bags["user_id"].offsets).tolist() == [int(i % 4 != 0) for i in range(_ROWS)]
    assert not {table.strings for table in schema.tables if table.name == "user_id"} - {""}


def test_names_that_mark_missing_values_are_said_to_be_values(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "click,country\n" + "".join(f"{i % 2},{'NULL' if i % 10 == 0 else 'c'}\n" for i in range(_ROWS))
    )
    use, reason = _found(infer(path), "country")
    assert use == "sparse"
    assert reason == "texts; 20 are 'NULL', a value like others; only an empty field is missing"


@pytest.mark.parametrize("line", ["sep=;\r\n", "\ufeffsep=;\n", '"sep=;"\r\n', "sep=,\n", "sep=\t\n"])
def test_the_line_that_tells_excel_the_separator(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.csv"
    separator = line.strip('\ufeff"\r\n')[4:]
    rows = "".join(
        f"{i};x,y\tz\n".replace(";", separator) if separator == ";" else f"{i}{separator}t\n"
        for i in range(9)
    )
    path.write_text(f"{line}a{separator}b\n{rows}", encoding="utf-8", newline="")
    sample = sample_rows(open_files(path), 99)
    assert sample.column_names == ["a", "b"]
    assert sample.column("a").to_pylist() == [str(i) for i in range(9)]
    path.write_text(f"{line}a{separator}b\n1{separator}2\n3\n", encoding="utf-8", newline="")
    with pytest.raises(DataError, match=r"a.csv, line 4: got 1 fields, expected 2"):
        list(open_files(path)[0].pieces())


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (r'"C:\"', "C:\\"),
        (r'"a""b"', 'a"b'),
        (r'"a\b"', r"a\b"),
        (r"a\"b", r"a\"b"),
        (r'"a\""', None),
        (r'"a\"b\"c"', None),
    ],
)
def test_a_backslash_before_a_quote_is_an_error_only_where_the_quote_is_meant_as_text(
    tmp_path: Path, field: str, text: str | None
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"a,b\n1,x\n{field},x\n3,x\n")
    if text is not None:
        assert next(iter(csv.reader([field])))[0] == text
        assert sample_rows(open_files(path), 9).column("a").to_pylist() == ["1", text, "3"]
        return
    with pytest.raises(DataError, match=r"a.csv, line 3: a .*quote"):
        list(open_files(path)[0].pieces())


@pytest.mark.parametrize(
    ("value", "odd"),
    [
        ("{},{}", "n/a"),
        ("{},{}", ""),
        ("-{},{}", "-"),
        ("1.0{},{}", "NULL"),
        ("{},{} €", "n/a"),
        ("€{},{}", "n/a"),
        ("{},{}%", "?"),
    ],
)
def test_decimal_commas_are_no_lists(tmp_path: Path, value: str, odd: str) -> None:
    path = tmp_path / "a.csv"
    texts = [odd if i % 10 == 0 else value.format(i % 60 + 10, i % 10) for i in range(_ROWS)]
    path.write_text(
        "click;price;user\n" + "".join(f"{i % 2};{text};{i % 7}\n" for i, text in enumerate(texts))
    )
    inferred = infer(path)
    assert "its comma may separate thousands or decimals" in _found(inferred, "price")[1]
    assert {table.separator for table in inferred.schema.tables} == {""}


def test_lists_of_two_and_more_numbers_are_lists(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    texts = [",".join(str(k) for k in range(i % 4)) for i in range(_ROWS)]
    path.write_text(
        "click;seen;user\n" + "".join(f"{i % 2};{text};{i % 7}\n" for i, text in enumerate(texts))
    )
    schema = infer(path).schema
    blocks = [block.take(np.arange(len(block))) for block in rows_of(path, schema)]
    assert np.diff(Examples.concatenate(blocks).bags["seen"].offsets).tolist() == [
        i % 4 for i in range(_ROWS)
    ]


@pytest.mark.parametrize("name", ["event.time", "Event Time", "event-time", "eventTime", "event time (ms)?"])
def test_words_of_names_may_be_separated_by_any_mark(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.csv"
    rows = "".join(f"{i % 2},{1_700_000_000_000 + 1000 * i},{i % 7}\n" for i in range(_ROWS))
    path.write_text(f"click,{name},user\n{rows}")
    assert _found(infer(path), name)[0] == "time"


@pytest.mark.parametrize("text", [" {}", "{}   ", "  {} "])
def test_blanks_around_texts_are_said_to_be_part_of_them(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.csv"
    rows = "".join(f"{i % 2},{text.format(f'site {i % 3}')},s{i % 5}\n" for i in range(_ROWS))
    path.write_text(f"click,site,other\n{rows}")
    (notice,) = infer(path).notices
    assert notice.startswith(
        f"column 'site': the blanks around texts such as {text.format('site 0')!r} are part"
    )


@pytest.mark.parametrize("quote", ["'", '"'])
def test_quotes_that_are_part_of_texts_are_said_to_be(quote: str) -> None:
    texts = [f"{quote}site {i % 3}{quote}" for i in range(_ROWS)]
    (notice,) = infer(pa.table({"click": [0, 1] * (_ROWS // 2), "site": texts})).notices
    assert notice.startswith(
        f"column 'site': the quotes around texts such as {texts[0]!r} are part of the values"
    )


@pytest.mark.parametrize("zone", [" -0800", " -08:00", "-08", " -08", "-0800"])
@pytest.mark.parametrize("fraction", ["", ".5", ".123456789"])
def test_dates_with_zones_as_databases_write_them(tmp_path: Path, zone: str, fraction: str) -> None:
    path = tmp_path / "a.csv"
    rows = "".join(
        f"{i % 2},2026-03-0{1 + i % 7} 0{i % 10}:30:00{fraction}{zone},s{i % 4}\n" for i in range(_ROWS)
    )
    path.write_text(f"click,login_at,other\n{rows}")
    schema = infer(path).schema
    (block,) = rows_of(path, schema)
    hours = block.take(np.arange(_ROWS)).bags["login_at_hour"].values
    assert hours.tolist() == [8 + i % 10 for i in range(_ROWS)]


def test_a_second_line_of_names_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(("click,item\n" + "".join(f"{i % 2},i{i % 3}\n" for i in range(9))) * 2)
    with pytest.raises(DataError, match="column 'click': got its own name among the values"):
        infer(path)
