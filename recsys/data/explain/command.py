"""``recsys-data rows`` and ``recsys-predict --explain``: what a model file holds and makes of rows, in lines."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recsys.checkpoint import build_model, load_checkpoint
from recsys.data.explain.rows import RowExplanation, explain
from recsys.data.explain.tables import TableReport, similar, table_reports
from recsys.data.lines import DataError
from recsys.inputs.schema import Schema
from recsys.models.click import ClickModel

_MOST_SHOWN = 40


def read_model(path: Path) -> tuple[ClickModel, Schema]:
    """Return the model of a file of recsys-train, in evaluation mode, and its columns.

    Raises:
        CheckpointError: The file cannot be used.
        DataError: It holds another model.
    """
    if path.is_dir():
        raise DataError(f"model: got the folder {path.name!r}, expected the .pt file of recsys-train")
    checkpoint = load_checkpoint(path)
    model, schema = build_model(checkpoint).eval(), checkpoint.arguments.get("inputs")
    if not isinstance(model, ClickModel) or schema is None:
        raise DataError(f"model: got {path.name!r}, which has no schema, expected what recsys-train writes")
    return model, Schema.from_json(schema)


def explained(path: Path, data: Any, num_rows: int) -> list[RowExplanation]:
    """Return what the model of a file makes of the first rows of a table; see ``recsys.data.explain.rows.explain``."""
    model, schema = read_model(path)
    return explain(model, schema, data, num_rows)


def lines_of(rows: Sequence[RowExplanation]) -> list[str]:
    """Return explanations as lines."""
    lines = []
    for number, row in enumerate(rows):
        logits = ", ".join(f"{name} {value:+.4f}" for name, value in row.logits.items())
        lines.append(f"row {number}: logit {logits}")
        for one in row.features:
            added = " ".join(f"{value:+.4f}" for value in one.added.values())
            lines.append(f"  {added}  {one.name} = {str(one.value)[:_MOST_SHOWN]}{_read(one)}")
    return lines


def _read(one: Any) -> str:
    if one.transformed:
        return f" -> {', '.join(f'{number:.4g}' for number in one.transformed)}"
    rows = ", ".join(map(str, one.rows[:8])) + (", ..." if len(one.rows) > 8 else "")
    unknown = f", {one.num_unknown} without a row of its own" if one.num_unknown else ""
    return f" -> {f'row {rows}' if one.rows else 'no ID'}{unknown}"


def rows_command(args: argparse.Namespace) -> tuple[Any, list[str]]:
    """Return what ``recsys-data rows`` found, as plain data and as lines.

    Raises:
        ValueError: The model, the table or an option is wrong.
    """
    model, schema = read_model(args.model)
    if args.near:
        name, _, value = args.near.partition("=")
        if args.data is None or not value:
            raise ValueError(
                f"--near: got {args.near!r}, expected COLUMN=VALUE, and --data: its values are compared"
            )
        found = similar(model, schema, args.data, (name, value), args.top)
        plain: Any = [{"value": one.value, "cosine": one.cosine} for one in found]
        return plain, [f"{one.cosine:.4f}  {one.value}" for one in found]
    reports = table_reports(model, schema, args.data)
    return [one.to_json() for one in reports], [_line(one) for one in reports]


def _line(one: TableReport) -> str:
    norms = "all rows are zero"
    if one.norms:
        norms = "norms {:.3g} (median), {:.3g} (99 %), {:.3g} (largest)".format(*one.norms)
    text = (
        f"{one.name}: {one.num_rows:,} rows of {one.embedding_dim}, {one.num_zero_rows:,} of zeros, {norms}"
    )
    if one.num_lookups is None:
        return text
    dead = one.num_rows - one.num_read
    text += f"; {one.num_lookups:,} lookups read {one.num_read:,} rows ({dead:,} never), "
    text += f"the hottest 1 % get {one.top_share:.0%}; {one.num_unknown:,} IDs have no row of their own"
    return text + (f", {one.num_sharing:,} share one" if one.num_sharing else "")
