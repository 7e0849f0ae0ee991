"""What the columns of a table were taken for, in two lines."""

from __future__ import annotations

import pyarrow as pa
import pytest

from recsys.data.tables.infer import infer
from recsys.data.tables.infer.summary import column_lines

_HINT = "recsys-data inspect clicks.csv shows why"


def test_each_use() -> None:
    table = pa.table(
        {
            "row_id": [f"r{i}" for i in range(100)],
            "timestamp": [f"2026-01-{1 + i // 4:02d}" for i in range(100)],
            "price": [i + 0.5 for i in range(100)],
            "user": [f"u{i % 9}" for i in range(100)],
            "clicked": ["yes" if i % 4 == 0 else "no" for i in range(100)],
        }
    )
    uses, left_out = column_lines(infer(table), "clicks.csv")
    assert uses == "label clicked (yes = 1, 25.0%); time timestamp; 1 dense: price; 1 table: user"
    assert left_out.startswith("left out: row_id (")
    assert left_out.endswith(f"different in every row); {_HINT}")


@pytest.mark.parametrize(
    ("values", "labels", "text"),
    [
        ([0, 1], (), "click (1, 50.0%)"),
        (["buy", "see"], ("click=buy,cart",), "click (buy, cart = 1, 50.0%)"),
        ([1, 5], ("click>=3",), "click (at least 3 = 1, 50.0%)"),
    ],
)
def test_labels(values: list[object], labels: tuple[str, ...], text: str) -> None:
    table = pa.table({"click": values * 30, "user": [f"u{i % 7}" for i in range(60)]})
    assert column_lines(infer(table, labels), "my clicks.csv") == (
        f"label {text}; 1 table: user",
        "recsys-data inspect 'my clicks.csv' shows why",
    )


def test_of_many_names_the_first() -> None:
    columns = {f"f{k}": [f"v{(i + k) % 7}" for i in range(60)] for k in range(28)}
    constant = {f"same{k}": ["a"] * 60 for k in range(9)}
    uses, left_out = column_lines(
        infer(pa.table({"click": [0, 1] * 30, **columns, **constant})), "clicks.csv"
    )
    assert uses.endswith("; 28 tables: f0, f1, f2, f3, f4, f5, f6, f7 and 20 more")
    assert left_out.endswith(f"9 columns: {', '.join(constant)}; {_HINT}")
