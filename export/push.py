"""recsys-export --push-rows: rows in nodes outside the servers."""

from __future__ import annotations

import json
from pathlib import Path

from recsys.artifact.store.check import check_rows
from recsys.artifact.store.nodes import StoreError
from recsys.artifact.store.push import OnProgress, push_artifact
from recsys.artifact.store.push_delta import push_delta

__all__ = ["StoreError", "checked", "pushed"]


def pushed(path: Path, address: str, over_bytes: int, on_progress: OnProgress, *, as_json: bool) -> str:
    """Write the rows of an artifact's large tables, or those of a delta; return what to print.

    Raises:
        ValueError, StoreError: As ``push_artifact`` and ``push_delta``.
    """
    if path.is_dir():
        report = push_artifact(path, address, over_bytes, on_progress)
    else:
        report = push_delta(path, address, on_progress)
    if as_json:
        return json.dumps(vars(report))
    if report.was_there:
        first = f"model {report.model}: the nodes hold state {report.number} already"
    else:
        first = (
            f"model {report.model}: wrote {report.num_rows:,} rows, {report.num_bytes:,} bytes; the nodes hold state "
            f"{report.number} ({report.digest})"
        )
    tables = [
        f"  {table}: sha256 {', '.join(digest[:16] for digest in digests)}"
        for table, digests in report.tables.items()
    ]
    return "\n".join([first, *tables])


def checked(path: Path, address: str, on_progress: OnProgress, *, as_json: bool) -> str:
    """Compare an artifact's rows in nodes with its digests; return what to print.

    Raises:
        ValueError, StoreError: As ``check_rows``.
    """
    num_rows = check_rows(path, address, on_progress)
    return (
        json.dumps({"num_rows": num_rows}) if as_json else f"the nodes hold {num_rows:,} rows of the artifact"
    )
