"""The command ``python -m benchmarks.plain_models``."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure.command import FAILURES, Measured, make_parser, run
from benchmarks.measure.tables import table_of
from benchmarks.plain_models.sweep import LIBRARIES, Row, public_models, rows_of

_DESCRIPTION = """\
Public models of plain PyTorch, exported as their packages publish them, and served. Each model is constructed small,
its embeddings are drawn, and it is exported for cpu and for cpu,cpu by an example of what its package calls it with. A
server answers for another example; the answers are compared with those of the model itself, over float rows and over
the stored ones.

The packages are not dependencies of this project. Install them into an environment of their own, beside recsys-serving;
--no-deps where their pins exclude this torch. fuxictr is 1.2.2, the last version whose wheel holds models of tables.
"""
_EPILOG = """\
examples:
  python -m benchmarks.plain_models
  python -m benchmarks.plain_models --library recbole --model SASRec --model BPR
  python -m benchmarks.plain_models --json

exit codes: 0 every model was served with the right answers, 1 some were not, 2 bad usage or no package is installed
"""


class NoModelsError(RuntimeError):
    """No package is installed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return run(_parser(), argv, _measured, {NoModelsError: 2, **FAILURES})


def _measured(args: argparse.Namespace, folder: Path) -> Measured:
    warnings.simplefilter("ignore")  # the packages use what their dependencies have deprecated
    logging.disable(logging.WARNING)
    with contextlib.redirect_stdout(io.StringIO()):  # some print when they are imported
        models, missing = public_models(args.library or list(LIBRARIES))
    models = [one for one in models if not args.model or one.name in args.model]
    for library, why in missing.items():
        print(f"benchmarks.plain_models: {library} is left out: {why}", file=sys.stderr)
    if not models:
        raise NoModelsError("no models: install their packages first")
    repository = folder / "models"
    repository.mkdir()
    with contextlib.redirect_stdout(io.StringIO()):
        rows = rows_of(models, args.engine, repository)
    texts = ("library", "model", "message")
    return Measured(
        data={"models": [{**vars(row), "is_right": row.is_right} for row in rows]},
        shown=[table_of(_title(rows), map(_cells, rows), texts=texts, sections="library")],
        status=0 if all(row.is_right for row in rows) else 1,
    )


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("plain_models", _DESCRIPTION, _EPILOG)
    parser.add_argument(
        "--library", action="append", choices=list(LIBRARIES), help="one of them (default: all)"
    )
    parser.add_argument("--model", action="append", help="the models of this name (default: all)")
    parser.add_argument("--engine", choices=("native", "reference"), default="native", help="default: native")
    return parser


def _title(rows: Sequence[Row]) -> str:
    right = sum(row.is_right for row in rows)
    return f"{right} of {len(rows)} public models of plain PyTorch are served with the right answers"


def _cells(row: Row) -> dict[str, str]:
    return {
        "library": row.library,
        "model": row.name,
        "unchanged": "no" if row.glue else "yes",
        "glue": str(row.glue),
        "exported": "yes" if row.is_exported else "no",
        "served": "yes" if row.is_served else "no",
        "of the arithmetic's bound": f"{row.difference:.3f}" if row.is_served else "",
        "of the rows' difference": f"{row.rows_difference:.2f}" if row.is_served else "",
        "message": row.error,
    }
