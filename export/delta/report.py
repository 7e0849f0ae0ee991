"""The report of a delta export, as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from recsys.artifact.delta.header import DeltaHeader
from recsys.base.terminal import size_text, whole_table


@dataclass(frozen=True, kw_only=True)
class DeltaTableReport:
    """One table that changes: its rows, and how many of them the delta holds."""

    name: str
    num_embeddings: int
    num_rows: int


@dataclass(frozen=True, kw_only=True)
class DeltaMappingReport:
    """One managed table whose raw IDs change: how many get a row, and how many lose theirs."""

    name: str
    num_ids: int
    num_evicted: int


@dataclass(frozen=True, kw_only=True)
class DeltaReport:
    """One delta.

    Attributes:
        path: The file.
        digest: Its digest.
        artifact: The digest of the artifact that it fits.
        base: The state that it was made from.
        tables: The changed tables.
        mappings: The managed tables whose raw IDs change.
        num_dense: Number of dense weights that the delta changes.
        num_dense_left: Number of differing dense weights that the delta leaves as they are.
        num_replaced: Number of deltas that it replaces.
        delta_bytes: The size of the file.
        seconds: The duration of the whole.
    """

    path: str
    digest: str
    artifact: str
    base: str
    tables: tuple[DeltaTableReport, ...]
    mappings: tuple[DeltaMappingReport, ...]
    num_dense: int
    num_dense_left: int
    num_replaced: int
    delta_bytes: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def report_of(path: Path, digest: str, header: DeltaHeader, seconds: float) -> DeltaReport:
    """Return the report of a delta that lies at a path."""
    return DeltaReport(
        path=str(path),
        digest=digest,
        artifact=header.artifact,
        base=header.base,
        tables=tuple(
            DeltaTableReport(name=table.name, num_embeddings=table.num_embeddings, num_rows=table.num_rows)
            for table in header.tables
        ),
        mappings=tuple(
            DeltaMappingReport(name=one.name, num_ids=one.num_ids, num_evicted=one.num_evicted)
            for one in header.mappings
        ),
        num_dense=len(header.dense),
        num_dense_left=header.num_dense_left,
        num_replaced=len(header.replaces),
        delta_bytes=path.stat().st_size,
        seconds=seconds,
    )


def print_delta(report: DeltaReport, console: Console) -> None:
    """Print the report."""
    rows = [
        (table.name, f"{table.num_embeddings:,}", f"{table.num_rows:,}", f"{_percent(table):.3g} %")
        for table in report.tables
    ]
    if rows:
        console.print(whole_table("changed rows", ("table", "rows", "changed", "share"), rows, left=(0,)))
    else:
        console.print("no row differs")
    for mapping in report.mappings:
        console.print(
            f"table {mapping.name}: {mapping.num_ids:,} raw IDs get a row, {mapping.num_evicted:,} lose theirs"
        )
    if report.num_dense:
        console.print(f"{report.num_dense} dense weights changed")
    if report.num_replaced:
        console.print(f"{report.num_replaced} deltas in one")
    console.print(
        f"delta {report.digest} for artifact {report.artifact}, from state {report.base}; "
        f"{report.seconds:.1f} s; wrote {size_text(report.delta_bytes)}"
    )
    console.print(report.path, style="bold", soft_wrap=True)


def _percent(table: DeltaTableReport) -> float:
    return 100 * table.num_rows / table.num_embeddings
