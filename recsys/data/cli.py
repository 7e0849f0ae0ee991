"""recsys-data: look at a table of examples, and write the schema that was inferred of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.console import Console, ConsoleRenderable

from recsys.base.files import replacing
from recsys.base.terminal import announced, whole_table
from recsys.data.options import parse
from recsys.data.tables.dataset import input_pieces
from recsys.data.tables.infer import SAMPLE_ROWS, ColumnReport, NoLabelError, infer
from recsys.data.tables.reading.files import open_files
from recsys.data.tables.reading.sample import sample_rows
from recsys.data.tables.row_use import RowUse, row_uses, warnings_of
from recsys.data.tables.schema_file import read_schema, to_toml

_FILE_WIDTH = 160
# Features that are shown of a wide table; all labels, times, weights and dates are.
_NUM_SHOWN = 500


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    args = parse(argv)
    if args.command == "join":
        return _join(args)
    if args.command == "rows":
        return _rows(args)
    return _item_vectors(args) if args.command == "item-vectors" else _inspect(args)


def _join(args: argparse.Namespace) -> int:
    from recsys.data.answers.command import join

    try:
        lines = join(args)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"recsys-data: {error}\n")
        return 2
    print("\n".join(lines))
    return 0


def _rows(args: argparse.Namespace) -> int:
    from recsys.data.explain.command import rows_command

    try:
        found, lines = rows_command(args)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"recsys-data: {error}\n")
        return 2
    print(json.dumps(found) if args.json else "\n".join(lines))
    return 0


def _item_vectors(args: argparse.Namespace) -> int:
    # Models are imported only when they are needed.
    from recsys.data.vectors import write_item_vectors

    try:
        num_rows = write_item_vectors(args.checkpoint, args.data, args.out, args.keep)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"recsys-data: {error}\n")
        return 2
    found = {"num_vectors": num_rows, "out": str(args.out)}
    print(json.dumps(found) if args.json else f"{num_rows:,} vectors; wrote {args.out}")
    return 0


def _inspect(args: argparse.Namespace) -> int:
    try:
        return _inspect_schema(args) if args.schema is not None else _inspect_columns(args)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"recsys-data: {error}\n")
        return 2


def _inspect_columns(args: argparse.Namespace) -> int:
    """Infer a schema, and show and write it."""
    if args.out is not None and args.out.exists() and not args.force:
        raise ValueError(
            f"--out: got {str(args.out)!r}, which is there already, expected a new file: --force replaces it, --out "
            "names another one"
        )
    try:
        with announced("recsys-data", f"looking at {args.data.name}"):
            inferred = infer(args.data, tuple(args.label), args.hash_rows, tuple(args.ignore))
    except NoLabelError as error:
        if not args.json:
            _print(_table(error.columns, {}))
            sys.stdout.flush()
        raise
    uses = row_uses(inferred.sample, inferred.schema.tables)
    text = to_toml(inferred.schema, {c.name: _comment(c, uses.get(c.name)) for c in inferred.columns})
    if args.out is not None:
        with replacing(args.out) as partial:
            partial.write_text(
                f"# Inferred from {args.data.name} by recsys-data inspect.\n{text}", encoding="utf-8"
            )
    warnings = [*inferred.notices, *warnings_of(uses, inferred.schema.tables)]
    if args.json:
        plain = {name: asdict(use) for name, use in uses.items()}
        columns = [{**asdict(c), "row_use": plain.get(c.name)} for c in inferred.columns]
        found = {"num_rows": inferred.num_rows, "columns": columns, "schema": inferred.schema.to_json()}
        print(json.dumps({**found, "warnings": warnings}))
        return 0
    _print(_table(inferred.columns, uses))
    if len(inferred.columns) > _NUM_SHOWN:
        print(
            f"{len(inferred.columns):,} columns, of which the first {_NUM_SHOWN} are shown; --out and --json give all"
        )
    print(f"a sample of {inferred.num_rows:,} rows" + ("" if args.out is None else f"; wrote {args.out}"))
    _warn(warnings)
    return 0


def _inspect_schema(args: argparse.Namespace) -> int:
    """Show what the IDs of a table read under a schema."""
    for option, given in (("--label", args.label), ("--ignore", args.ignore), ("--out", args.out)):
        if given:
            raise ValueError(
                f"{option}: got it with --schema, expected one of the two: the schema is not inferred"
            )
    schema = read_schema(args.schema)
    input_pieces(args.data, schema)  # checks the columns
    sample = sample_rows(open_files(args.data), SAMPLE_ROWS)
    uses = row_uses(sample, schema.tables)
    warnings = warnings_of(uses, schema.tables)
    if args.json:
        plain = {name: asdict(use) for name, use in uses.items()}
        print(json.dumps({"num_rows": sample.num_rows, "row_uses": plain, "warnings": warnings}))
        return 0
    rows = [
        [name, table.name, table.ids, _read(uses.get(name))]
        for table in schema.tables
        for name in table.feature_names
    ]
    _print(whole_table("features", ["feature", "table", "ids", "rows read"], rows, left={0, 1, 2}))
    print(f"a sample of {sample.num_rows:,} rows")
    _warn(warnings)
    return 0


def _print(table: ConsoleRenderable) -> None:
    # A file or a pipe gets whole lines.
    Console(width=None if sys.stdout.isatty() else _FILE_WIDTH).print(table)


def _warn(lines: Sequence[str]) -> None:
    for line in lines:
        sys.stderr.write(f"recsys-data: warning: {line}\n")


def _read(use: RowUse | None) -> str:
    """Return the rows that IDs read; a dash where each ID has a row of its own."""
    return "-" if use is None else f"{use.num_ids:,} IDs -> {use.num_rows:,} of {use.table_rows:,}"


def _comment(column: ColumnReport, use: RowUse | None) -> str:
    found = f"{column.kind}, {column.num_values:,} different, {column.missing:.1%} missing: {column.reason}"
    return found if use is None else f"{found}; {use}"


def _table(columns: Sequence[ColumnReport], uses: Mapping[str, RowUse]) -> ConsoleRenderable:
    rows = [
        [
            c.name,
            c.use,
            c.kind,
            f"{c.num_values:,}",
            _read(uses.get(c.name)),
            f"{c.missing:.1%}",
            c.reason,
        ]
        for number, c in enumerate(columns)
        if number < _NUM_SHOWN or c.use not in ("dense", "sparse", "ignored")
    ]
    headings = ["column", "use", "holds", "different", "rows read", "missing", "why"]
    return whole_table("columns", headings, rows, left={0, 1, 2, 6})


if __name__ == "__main__":
    sys.exit(main())
