"""Schema files: TOML or JSON, see ``recsys.inputs.schema``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recsys.base.files import read_json
from recsys.data.lines import DataError
from recsys.errors import SchemaError
from recsys.inputs.schema import Schema
from recsys.options.sections import value_text


def read_schema(path: Path) -> Schema:
    """Read a schema file: JSON if its name ends with ``.json``, else TOML.

    Raises:
        DataError: The file is missing, not readable, or not a valid schema; the message names the field.
    """
    try:
        return Schema.from_json(
            read_json(path, "schema", DataError) if path.suffix == ".json" else _toml(path)
        )
    except SchemaError as error:
        raise DataError(f"{path.name}: {error}") from None


def _toml(path: Path) -> Any:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"schema: cannot read {path.name!r}: {type(error).__name__}") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise DataError(f"schema {path.name!r}: not readable as TOML: {error}") from None
    except RecursionError:
        raise DataError(
            f"schema {path.name!r}: not readable as TOML: its values are nested too deeply"
        ) from None


def to_toml(schema: Schema, comments: Mapping[str, str] | None = None) -> str:
    """Return a schema as the text of a TOML file.

    Args:
        schema: The schema.
        comments: A comment for each column, written above its entry.
    """
    data = schema.to_json()
    kinds = ("labels", "dense", "tables", "crosses")
    lines = [f"{key} = {value_text(value)}" for key, value in data.items() if key not in kinds]
    for kind in kinds:
        for item in data.get(kind, ()):
            comment = (comments or {}).get(item.get("date", item["name"]), "")
            lines += ["", *(f"# {line}" for line in comment.splitlines()), f"[[{kind}]]"]
            lines += [f"{key} = {value_text(value)}" for key, value in item.items()]
    return "\n".join(lines).lstrip("\n") + "\n"
