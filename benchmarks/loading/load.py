"""Loading time and memory of an artifact, the memory that processes share, and the memory of an export.

Everything is measured in fresh processes, see ``benchmarks.steps.load``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rich.table import Table

from benchmarks.measure.command import Measured, make_parser, run
from benchmarks.measure.processes import StepError
from benchmarks.measure.tables import table_of, tracked
from benchmarks.models.dlrm import EMBEDDING_DIM, NUM_TABLES

_EPILOG = """\
examples:
  python -m benchmarks.loading.load
  python -m benchmarks.loading.load --size-gb 0.1 --json
  python -m benchmarks.loading.load --data-type int8 --dir /var/tmp

It writes two artifacts of --size-gb, one after the other, and needs the memory of the float model besides: twice
that for fp16 rows, nearly four times for int8. Exit codes: 0 measured, 1 a step failed, 2 bad usage.
"""
# Bytes of a stored row of width 64 in host memory (recsys.rows.format).
_ROW_BYTES = {"fp32": 4 * EMBEDDING_DIM, "fp16": 2 * EMBEDDING_DIM, "int8": EMBEDDING_DIM + 4}
_FORMS = ("directory", "single-file")
_ROOT = Path(__file__).resolve().parents[2]
_MEGABYTE = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to load.

    Attributes:
        form: form of the artifact.
        name: name of the variant.
        cold: whether the artifact's files are dropped from the page cache first.
        verify: whether checksums are verified.
        num_processes: processes that hold it at the same time.
    """

    form: str
    name: str
    cold: bool = False
    verify: bool = False
    num_processes: int = 1


_CASES = tuple(
    case
    for form in _FORMS
    for case in (
        Case(form=form, name="cold", cold=True),
        Case(form=form, name="warm"),
        Case(form=form, name="warm, checksums verified", verify=True),
        Case(form=form, name="warm, two processes", num_processes=2),
    )
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return run(_parser(), argv, _measured)


def _measured(args: argparse.Namespace, folder: Path) -> Measured:
    num_rows = round(args.size_gb * 1e9 / (_ROW_BYTES[args.data_type] * NUM_TABLES))
    exports, loads = _measure(folder, args.data_type, num_rows)
    about = f"{NUM_TABLES} tables of {num_rows:,} rows, dim {EMBEDDING_DIM}, {args.data_type}"
    return Measured(
        data={"data_type": args.data_type, "num_table_rows": num_rows, "exports": exports, "loads": loads},
        shown=[about, _export_table(exports), _load_table(loads)],
    )


def _measure(
    folder: Path, data_type: str, num_rows: int
) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    exports: dict[str, dict[str, Any]] = {}
    loads = []
    path = folder / "artifact"
    for case in tracked(_CASES, "load"):
        if case.form not in exports:
            if path.exists():
                _remove(path)
            with _step("export", str(path), data_type, str(num_rows), case.form) as child:
                exports[case.form] = answer_of(child)
        loads.append(_load(case, path))
    return exports, loads


def _load(case: Case, path: Path) -> dict[str, Any]:
    if case.cold:
        drop_from_cache(path)
    with ExitStack() as stack:
        children = []
        first: list[dict[str, Any]] = []
        for _ in range(case.num_processes):
            child = stack.enter_context(_step("hold", str(path), "verify" if case.verify else "skip"))
            children.append(child)
            first.append(answer_of(child))
        all_read = []
        for child in children:
            _stdin(child).write("\n")
            _stdin(child).flush()
            all_read.append(answer_of(child))
    return {"form": case.form, "case": case.name, "processes": first, "all_rows_read": all_read}


@contextmanager
def _step(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.steps.load", *arguments],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.communicate()


def answer_of(child: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a step printed in its next line.

    Raises:
        StepError: it ended instead.
    """
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise StepError(f"a step ended with exit status {child.wait()} and no answer")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _stdin(child: subprocess.Popen[str]) -> IO[str]:
    assert child.stdin is not None
    return child.stdin


def _files(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else [path]


def drop_from_cache(path: Path) -> None:
    """Drop an artifact's files from the page cache."""
    for file in _files(path):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _remove(path: Path) -> None:
    for file in _files(path):
        file.unlink()
    if path.is_dir():
        path.rmdir()


def _mb(num_bytes: float) -> str:
    return f"{num_bytes / _MEGABYTE:,.0f}"


def _export_table(exports: dict[str, dict[str, Any]]) -> Table:
    rows = [
        {
            "artifact": form,
            "size": _mb(found["artifact_bytes"]),
            "float tables": _mb(found["float_tables_bytes"]),
            "one table": _mb(found["largest_float_table_bytes"]),
            "RSS before": _mb(found["rss_before_bytes"]),
            "peak RSS": _mb(found["peak_rss_bytes"]),
            "more": _mb(found["peak_rss_bytes"] - found["rss_before_bytes"]),
            "of it anonymous": _mb(found["peak_anonymous_bytes"] - found["anonymous_before_bytes"]),
            "seconds": f"{found['seconds']:.1f}",
        }
        for form, found in exports.items()
    ]
    return table_of("export, in MB", rows)


def _load_table(loads: Sequence[dict[str, Any]]) -> Table:
    rows = [
        {
            "artifact": load["form"],
            "case": load["case"],
            "ready (s)": f"{found['ready_s']:.3f}",
            "first prediction (s)": f"{found['first_prediction_s']:.3f}",
            "private before": _mb(_private(found["before"])),
            "private after": _mb(_private(found["loaded"])),
            "all rows read (s)": f"{found['read_all_rows_s']:.2f}",
            "then private dirty": _mb(after["private_dirty_bytes"]),
            "private clean": _mb(after["private_clean_bytes"]),
            "shared": _mb(after["shared_bytes"]),
            "Pss": _mb(after["pss_bytes"]),
        }
        for load in loads
        for found, after in zip(load["processes"], load["all_rows_read"], strict=True)
    ]
    return table_of("load; memory in MB, of each process", rows, texts=("artifact", "case"))


def _private(found: dict[str, int]) -> int:
    return found["private_dirty_bytes"] + found["private_clean_bytes"]


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("loading.load", __doc__, _EPILOG)
    parser.add_argument(
        "--size-gb", type=_size, default=2.0, metavar="GB", help="of the stored rows (default 2)"
    )
    parser.add_argument(
        "--data-type", choices=tuple(_ROW_BYTES), default="fp16", help="of the stored rows (default fp16)"
    )
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where the artifacts go meanwhile")
    return parser


def _size(text: str) -> float:
    try:
        size = float(text)
    except ValueError:
        size = 0.0
    if not 0.001 <= size <= 1000:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected gigabytes between 0.001 and 1000")
    return size


if __name__ == "__main__":
    sys.exit(main())
