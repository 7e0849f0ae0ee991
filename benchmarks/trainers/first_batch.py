"""Time to the first batch of ``recsys-train --data``, and peak memory: from a table alone, without a schema.

Each table is read in a process of its own: the schema is inferred, the rows are split, and the first batch is made.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from benchmarks.measure.command import Measured, make_parser, names_of, run
from benchmarks.measure.memory import PeakSampler, resident
from benchmarks.measure.processes import run_json
from benchmarks.measure.tables import table_of
from recsys.base.cli import counts
from recsys.data.batches import EpochOrder, batches
from recsys.train.commands.defaults import DEFAULTS
from recsys.train.commands.sources import DataConfig, open_dataset

NUM_NUMBERS = 13
NUM_TEXTS = 26
FORMATS = ("csv", "parquet")
_BATCH_SIZE = DEFAULTS["table"].train.batch_size
#: Different texts of the columns, in turns: from a country to a device.
_NUM_VALUES = (10, 100, 3_000, 100_000, 2_000_000)
_WRITTEN_ROWS = 250_000
#: The word of the command that reads one table, in a process of its own.
_READ = "read"
_EPILOG = """\
examples:
  python -m benchmarks.trainers.first_batch
  python -m benchmarks.trainers.first_batch --rows 400000,4000000 --dir /tmp/tables --json

Tables that --dir holds already are read as they are.
"""


@dataclass(frozen=True, kw_only=True)
class FirstBatch:
    """One table.

    Attributes:
        name: of the file.
        num_rows: of the table.
        seconds: from the path to the first batch, imports left out.
        cpu_s: time of all threads on cores.
        peak_bytes: of the resident memory.
        peak_own_bytes: of the memory that was allocated, without the pages of libraries and other files.
        start_own_bytes: the same before the table is read, by what is imported.
    """

    name: str
    num_rows: int
    seconds: float
    cpu_s: float
    peak_bytes: int
    peak_own_bytes: int
    start_own_bytes: int


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == [_READ]:
        print(json.dumps(asdict(read(Path(words[1])))))
        return 0
    return run(_parser(), words, _measured)


def _measured(args: argparse.Namespace, folder: Path) -> Measured:
    folder = args.dir or folder
    results = [_apart(write_table(folder, rows, kind)) for rows in args.rows for kind in args.formats]
    gib = 2**30
    rows = [
        {
            "table": result.name,
            "rows": f"{result.num_rows:,}",
            "seconds": f"{result.seconds:.1f}",
            "processor seconds": f"{result.cpu_s:.1f}",
            "peak memory": f"{result.peak_bytes / gib:.2f} GiB",
            "without files": f"{result.peak_own_bytes / gib:.2f} GiB",
            "at start": f"{result.start_own_bytes / gib:.2f} GiB",
        }
        for result in results
    ]
    table = table_of(f"to the first batch: {NUM_NUMBERS} numbers, {NUM_TEXTS} texts", rows)
    return Measured(data={"tables": [asdict(result) for result in results]}, shown=[table])


def write_table(folder: Path, num_rows: int, kind: str) -> Path:
    """Write a table like a click log, part by part, if it is not there yet; returns its path."""
    path = folder / f"clicks-{num_rows}.{kind}"
    if path.exists():
        return path
    generator = np.random.default_rng(0)
    partial = path.with_suffix(".partial")
    writer: csv.CSVWriter | parquet.ParquetWriter | None = None
    for first in range(0, num_rows, _WRITTEN_ROWS):
        part = _rows(generator, min(_WRITTEN_ROWS, num_rows - first))
        if writer is None:
            made = csv.CSVWriter if kind == "csv" else parquet.ParquetWriter
            writer = made(partial, part.schema)
        writer.write_table(part)
    assert writer is not None
    writer.close()
    return partial.rename(path)


def _rows(generator: np.random.Generator, num_rows: int) -> pa.Table:
    columns: dict[str, object] = {"click": (generator.random(num_rows) < 0.25).astype(np.int64)}
    for i in range(NUM_NUMBERS):
        missing = generator.random(num_rows) < 0.1
        columns[f"n{i}"] = pa.array(generator.lognormal(2, 2, num_rows).astype(np.int64), mask=missing)
    for i in range(NUM_TEXTS):
        num_values = _NUM_VALUES[i % len(_NUM_VALUES)]
        # Squared, so that some texts are frequent and most are rare.
        drawn = (generator.random(num_rows) ** 3 * num_values).astype(np.int64)
        texts = [f"{i:x}{value * 2654435761 % 2**32:08x}"[-8:] for value in drawn.tolist()]
        columns[f"c{i}"] = pa.array(texts)
    return pa.table(columns)


def read(path: Path) -> FirstBatch:
    """Read a table up to the first batch, in this process."""
    at_start = resident().anonymous_bytes
    with PeakSampler() as peak:
        began, began_cpu = time.perf_counter(), time.process_time()
        dataset = open_dataset(DataConfig(name="table", path=path))
        source = batches(dataset.train(), _BATCH_SIZE, EpochOrder(seed=0, epoch=0))
        batch = next(source)
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    assert len(batch.labels) == min(_BATCH_SIZE, dataset.num_train_rows)
    return FirstBatch(
        name=path.name,
        num_rows=dataset.num_train_rows + dataset.num_held_out_rows,
        seconds=seconds,
        cpu_s=cpu_s,
        peak_bytes=peak.peak_rss_bytes,
        peak_own_bytes=peak.peak_anonymous_bytes,
        start_own_bytes=at_start,
    )


def _apart(path: Path) -> FirstBatch:
    command = [sys.executable, "-m", "benchmarks.trainers.first_batch", _READ, str(path)]
    return FirstBatch(**run_json(command))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("trainers.first_batch", __doc__, _EPILOG)
    parser.add_argument(
        "--rows", type=counts, default=(400_000,), metavar="N,N", help="of each table (default 400000)"
    )
    parser.add_argument(
        "--formats", type=names_of(FORMATS), default=FORMATS, metavar="F,F", help="csv,parquet"
    )
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where the tables lie or are written")
    return parser


if __name__ == "__main__":
    sys.exit(main())
