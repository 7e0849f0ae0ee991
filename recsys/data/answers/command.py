"""What ``recsys-data join`` does with its options."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pyarrow as pa

from recsys.artifact.parts import read_manifest
from recsys.base.files import replacing
from recsys.data.answers.columns import trained_schema
from recsys.data.answers.join import join_labels, open_inputs
from recsys.data.answers.rules import JoinRules
from recsys.data.tables.schema_file import read_schema, to_toml
from recsys.data.tables.values.moments import moments_of
from recsys.errors import AnswerLogError
from recsys.inputs.schema import Schema


def join(args: argparse.Namespace) -> list[str]:
    """Join a log with labels and return the lines to print.

    Raises:
        ValueError: The options, the log or the labels cannot be used.
        OSError: A file cannot be written.
    """
    for option, path in (("--out", args.out), ("--schema-out", args.schema_out)):
        if path is not None and path.exists() and not args.force:
            raise AnswerLogError(
                f"{option}: got {str(path)!r}, which is there already, expected a new file: --force replaces it"
            )
    if (args.model_file is None) != (args.schema_out is None):
        raise AnswerLogError("--model-file, --schema-out: got one of them, expected both or none")
    rules = JoinRules(
        within_s=args.within,
        missing=args.missing,
        doubled=args.doubled,
        labels=tuple(args.label),
        label_time=args.label_time,
        candidate=args.candidate,
        model=args.model,
        version=args.version,
        until_us=_until_us(args.until),
        memory_bytes=args.memory,
    )
    inputs = open_inputs(args.log, args.labels, rules)
    text = None
    if args.model_file is not None:
        schema = trained_schema(_schema_of(args.model_file), inputs.files.layout, inputs.columns.labels)
        text = to_toml(schema)
    counts = join_labels(inputs, args.out, rules)
    if text is not None:
        with replacing(args.schema_out) as partial:
            partial.write_text(f"# Of {args.out.name}, by recsys-data join.\n{text}", encoding="utf-8")
    found = counts.to_json()
    if args.json:
        return [json.dumps({**found, "out": str(args.out)})]
    lines = [f"{number:>14,}  {name.replace('_', ' ')}" for name, number in found.items()]
    return [*lines, f"wrote {args.out}" + ("" if text is None else f" and {args.schema_out}")]


def _until_us(text: str) -> int | None:
    if not text:
        return None
    moments = moments_of(pa.array([text]))
    if moments is None:
        raise AnswerLogError(f"--until: got {text[:40]!r}, expected a time such as 2026-11-27T12:00:00Z")
    return int(moments.cast(pa.int64())[0].as_py())


def _schema_of(path: Path) -> Schema:
    if path.suffix in (".toml", ".json"):
        return read_schema(path)
    schema = read_manifest(path).schema if path.is_dir() else None
    if schema is None:
        raise AnswerLogError(
            f"--model-file: got {str(path)!r}, which has no schema, expected an artifact or a schema file"
        )
    return schema
