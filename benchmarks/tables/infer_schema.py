"""How long ``recsys-data inspect`` takes to infer a schema: of Criteo's 40 columns, and of 100 columns of all kinds.

Text files are the worst case: each value of the sample, 100 000 rows, is a text.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv, parquet

from benchmarks.measure.machine import prepare, wide_console
from benchmarks.measure.tables import table_of
from recsys.data.tables.infer import infer

_LIMIT_S = 3.0
#: Different texts of Criteo's columns, in turns.
_NUM_VALUES = (10, 100, 3_000, 100_000, 600_000)


@dataclass(frozen=True, kw_only=True)
class Inference:
    """One file.

    Attributes:
        name: of the file.
        num_columns: of the table.
        seconds: from the path to the schema, imports left out.
        cpu_s: time of all threads on cores.
    """

    name: str
    num_columns: int
    seconds: float
    cpu_s: float


def main() -> None:
    """Write the tables, infer their schemas, print the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000, help="of each table (default: 400000)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--check", action="store_true", help=f"exit with 3 if 100 columns take more than {_LIMIT_S:.0f} s"
    )
    args = parser.parse_args()
    machine = prepare()
    with tempfile.TemporaryDirectory() as folder:
        results = [
            _timed(path)
            for name, make in (("criteo", _criteo), ("100_columns", _mixed))
            for path in _written(make(args.rows), Path(folder) / name)
        ]
    slowest = max(result.seconds for result in results if result.num_columns > 100)
    if args.json:
        print(json.dumps({"machine": machine.to_json(), "results": [asdict(result) for result in results]}))
    else:
        rows = [
            {
                "file": result.name,
                "columns": str(result.num_columns),
                "seconds": f"{result.seconds:.2f}",
                "on cores": f"{result.cpu_s:.2f}",
            }
            for result in results
        ]
        wide_console().print(table_of("inference of a schema", rows))
        print(machine.text())
    if args.check and slowest > _LIMIT_S:
        sys.exit(3)


def _timed(path: Path) -> Inference:
    infer(path)  # the file comes into the cache, and modules are loaded
    started, on_cores = time.perf_counter(), time.process_time()
    found = infer(path)
    return Inference(
        name=path.name,
        num_columns=len(found.columns),
        seconds=time.perf_counter() - started,
        cpu_s=time.process_time() - on_cores,
    )


def _written(table: pa.Table, path: Path) -> list[Path]:
    paths = [path.with_suffix(".csv"), path.with_suffix(".parquet")]
    csv.write_csv(table, paths[0])
    parquet.write_table(table, paths[1], row_group_size=100_000)
    return paths


def _criteo(num_rows: int) -> pa.Table:
    rng = np.random.default_rng(0)
    columns: dict[str, pa.Array] = {"label": pa.array(rng.integers(0, 2, num_rows))}
    for i in range(13):
        counts = rng.negative_binomial(1, 0.02, num_rows)
        columns[f"I{i + 1}"] = pa.array(counts, mask=rng.random(num_rows) < 0.2)
    for i in range(26):
        columns[f"C{i + 1}"] = _texts(rng.zipf(1.2, num_rows) % _NUM_VALUES[i % len(_NUM_VALUES)], "{:08x}")
    return pa.table(columns)


def _texts(numbers: NDArray[np.int64], form: str) -> pa.Array:
    different, indices = np.unique(numbers, return_inverse=True)
    texts = pa.array([form.format(number * 2654435761 % 2**32) for number in different.tolist()])
    return texts.take(pa.array(indices))


def _mixed(num_rows: int) -> pa.Table:
    """Return columns of texts, codes, lists, dates, numbers with marks, and whole numbers."""
    rng = np.random.default_rng(1)
    kinds: list[Callable[[], pa.Array]] = [
        lambda: _texts(rng.integers(0, 2**31, num_rows), "{:08x}"),
        lambda: _texts(rng.zipf(1.3, num_rows) % 5_000, "site-{}.example"),
        lambda: _texts(rng.integers(0, 300, num_rows), "a{0}|b{0}"),
        lambda: _texts(rng.integers(0, 5_000, num_rows), "['x{0}', 'y{0}']"),
        lambda: _texts(rng.integers(0, 10**6, num_rows), "{}.5"),
        lambda: _texts(rng.integers(0, 10**6, num_rows), "{}").take(pa.array(rng.permutation(num_rows))),
        lambda: pa.array(np.datetime64("2026-01-01") + rng.integers(0, 10**6, num_rows)).cast(pa.string()),
        lambda: pa.array(np.where(rng.random(num_rows) < 0.01, "-", rng.random(num_rows).astype("U8"))),
        lambda: pa.array(rng.integers(0, 10**9, num_rows)),
        lambda: pa.array(rng.random(num_rows)),
    ]
    columns = {f"x{i}": kinds[i % len(kinds)]() for i in range(100)}
    return pa.table({"click": rng.integers(0, 2, num_rows), **columns})


if __name__ == "__main__":
    main()
