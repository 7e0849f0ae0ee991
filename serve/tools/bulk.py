"""Scores of an artifact for all rows of a table, written to a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from pyarrow import csv, parquet
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from recsys.artifact.load import load_artifact
from recsys.base.files import replacing
from recsys.data.scoring import schema_for, scores
from recsys.data.tables.dataset import check_kept, kept_types, unlabeled
from recsys.data.tables.reading.files import open_files
from recsys.data.tables.schema_file import read_schema
from recsys.data.tables.values.arrow_types import plain
from recsys.rows.memory import RowsMemory

_SUFFIXES = (".parquet", ".csv")


@dataclass(frozen=True, kw_only=True)
class BulkJob:
    """What to score.

    Attributes:
        artifact: The model's path, or its address in an object store.
        input: A CSV, Parquet, ORC, Feather or JSON-lines file, a folder of them, or a pattern.
        output: The file to write: Parquet or CSV, by its name.
        schema: A schema file; None for the artifact's own.
        keep: Columns of the input to write beside the scores.
        memory: How the model's rows are held.
    """

    artifact: Path | str
    input: Path
    output: Path
    schema: Path | None = None
    keep: tuple[str, ...] = ()
    memory: RowsMemory = field(default_factory=RowsMemory)

    def __post_init__(self) -> None:
        if self.output.suffix not in _SUFFIXES:
            raise ValueError(
                f"output: got {self.output.name!r}, expected a name that ends in .parquet or .csv"
            )
        if not self.output.absolute().parent.is_dir():
            raise ValueError(f"output: got {str(self.output)!r}, expected a file in a folder that exists")


def predict_table(job: BulkJob) -> int:
    """Write a row of scores for each row of the input, in its order; return their number.

    A progress bar is shown on stderr where that is a terminal. The output appears when it is whole.

    Raises:
        ValueError: The artifact, the table or the schema cannot be used.
        OSError: The output cannot be written.
    """
    artifact = load_artifact(job.artifact, memory=job.memory)
    schema = schema_for(artifact, None if job.schema is None else read_schema(job.schema))
    files = open_files(job.input)
    check_kept(files, job.keep)
    types = kept_types(files, job.keep)
    num_rows = 0
    writer: Any = None
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.completed:,.0f} rows, {task.fields[rate]:,.0f} a second"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with replacing(job.output) as partial, bar, torch.inference_mode():
        task = bar.add_task("scoring", total=None, rate=0.0)
        try:
            for file in files:
                for examples, kept in unlabeled(file, schema, job.keep):
                    table = _table(scores(artifact, examples), kept, types)
                    writer = writer or _writer(partial, job.output.suffix, table.schema)
                    writer.write_table(table)
                    num_rows += table.num_rows
                    elapsed = bar.tasks[task].elapsed or 1e-9
                    bar.update(task, completed=num_rows, rate=num_rows / elapsed)
        finally:
            if writer is not None:
                writer.close()
        if writer is None:
            raise ValueError("input: got no rows, expected at least one")
    return num_rows


def _table(outputs: dict[str, Any], kept: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    columns = {
        name: plain(kept.column(name)).cast(types[name]) if name in types else kept.column(name)
        for name in kept.column_names
    }
    for name, values in outputs.items():
        flat = values.reshape(len(values), -1)
        is_vector = values.ndim > 1
        columns[name] = (
            pa.FixedSizeListArray.from_arrays(flat.ravel(), flat.shape[1]) if is_vector else flat[:, 0]
        )
    return pa.table(columns)


def _writer(path: Path, suffix: str, schema: pa.Schema) -> Any:
    return parquet.ParquetWriter(path, schema) if suffix == ".parquet" else csv.CSVWriter(path, schema)
