"""recsys-predict: send one request to a server and print its answer, or score a table with an artifact."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.base.cli import check_address_space
from recsys.base.files import parse_json
from recsys.base.remote import is_address
from recsys.options.kinds import PATH, SEED, SOME_NAMES, SWITCH, TEXT, one_of, whole
from recsys.options.table import Command, Group, Option, json_option
from recsys.rows.memory import NUMA, RowsMemory
from serve.client import Client, Context, Settings
from serve.client.errors import InvalidRequestError, PredictError
from serve.client.sampling import JsonRequest, example_request
from serve.tools.client_options import TLS, timeout_option, tls_of

_EPILOG = """\
example:
  recsys-predict 127.0.0.1:8500 --example > request.json
  recsys-predict 127.0.0.1:8500 --json-request request.json
  recsys-predict model.artifact --data big.parquet --out scores.parquet --keep user_id
  recsys-predict model.pt --data today.csv --explain --rows 3

A request in JSON, rows outermost ("weights" only for weighted inputs):
  {"dense": {"dense": [[0.5, 1.0]]}, "sparse": {"user": [[7]], "genres": [[1, 4]]}, "weights": {}}
IDs may be texts, which the server hashes where the model was exported so:
  {"sparse": {"site_id": [["85f751fd"], ["1fbe01fe", "x"]]}}
Inputs that all rows share, each with one row, may stand under "context":
  {"sparse": {"genres": [[1, 4], [2]]}, "context": {"dense": {"dense": [[0.5, 1.0]]}, "sparse": {"user": [[7]]}}}

exit codes: 0 answered, 1 no answer, 2 bad usage or request
"""
# Longer lists are shortened on a terminal.
_MOST_ITEMS = 64
_MOST_EXAMPLES = 1024


_REQUEST = (
    Option("--json-request", TEXT, "a request in JSON; - reads it from standard input", metavar="FILE"),
    Option(
        "--example",
        SWITCH,
        "print a request to fill in, send nothing: rows like those of the training where the model has some, else "
        "random ones",
    ),
    Option("--random", SWITCH, "send such a request"),
    Option("--metadata", SWITCH, "print what the model takes and gives"),
    Option(
        "--data",
        PATH,
        "score a CSV, Parquet, ORC, Feather or JSON-lines file, a folder or a pattern",
        metavar="TABLE",
        old=("--input",),
    ),
)
_TABLE = (
    Option(
        "--explain",
        SWITCH,
        "with --data, of a .pt file of recsys-train: print what each feature of the first --rows rows reads, and adds "
        "to the logit",
    ),
    Option("--out", PATH, "where the scores go: .parquet or .csv", old=("--output",)),
    Option("--keep", SOME_NAMES, "columns of the table to write too", default=()),
    Option("--schema", PATH, "of the table (default: the artifact's)"),
    Option("--copy-rows", SWITCH, "of the artifact: hold its rows in private memory"),
    Option("--lock-rows", SWITCH, "lock them in memory"),
    Option("--numa", one_of(NUMA), "NUMA nodes of copied rows (default: the system's choice)"),
    Option(
        "--random-access",
        SWITCH,
        "read mapped rows in single pages (default: if they exceed three quarters of the memory)",
        negatable=True,
    ),
)
_SENDING = (
    Option("--rows", whole(0), "of the example or random request", default=2),
    Option("--seed", SEED, "of the example or random request", default=0),
    Option(
        "--model",
        TEXT,
        "the model's name (default: the one that the server holds)",
        default="",
        metavar="NAME",
    ),
    Option(
        "--version",
        TEXT,
        "of the model (default: the one that the server chooses); without V, print the program's version",
        default="",
        metavar="V",
        shows_version=True,
    ),
    timeout_option("for the answer", 10.0),
    json_option("print the answer, or the example, as one JSON object and nothing else"),
    Option("--full", SWITCH, "print long lists in full on a terminal too"),
)
COMMAND = Command(
    program="recsys-predict",
    usage="recsys-predict ADDRESS (--json-request FILE | --example | --random | --metadata) [option ...], or "
    "recsys-predict ARTIFACT --data TABLE --out FILE",
    about="Send one request to a server and print its answer, or score a table with an artifact.",
    epilog=_EPILOG,
    groups=(
        Group(
            "",
            (
                Option(
                    "address",
                    TEXT,
                    "host:port of a server, or unix:PATH; with --data, an artifact or its address, such as s3://bucket/m.artifact",
                    required=True,
                ),
            ),
        ),
        Group("what is asked", _REQUEST, one_of=True),
        Group("tables", _TABLE),
        Group("requests", _SENDING),
        TLS,
    ),
)


def read_request(source: str) -> JsonRequest:
    """Read a request in its JSON form from a file or (``-``) from standard input.

    Raises:
        ValueError: the file cannot be read or does not contain such a request.
    """
    try:
        content = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise ValueError(f"{source}: {error.strerror}") from None
    request = parse_json(content, source, ValueError)
    _check_parts(source, "", request, "context")
    if "context" in request:
        _check_parts(source, "context.", request["context"], "num_rows")
    checked: JsonRequest = request
    return checked


_PARTS = ("dense", "sparse", "weights")


def _check_parts(source: str, at: str, request: object, other: str) -> None:
    where = f'{source}: "{at[:-1]}"' if at else source
    expected = f'expected an object with "dense", "sparse" and, where used, "weights" and "{other}"'
    if not isinstance(request, dict):
        raise ValueError(f"{where}: got no object, {expected}")
    unknown = next((name for name in request if name not in (*_PARTS, other)), None)
    if unknown is not None:
        raise ValueError(f"{where}: got an unknown entry {unknown[:64]!r}, {expected}")
    for part, inputs in request.items():
        if part == "num_rows":
            if type(inputs) is not int:
                raise ValueError(f'{source}: "{at}num_rows": expected a whole number')
        elif not isinstance(inputs, dict):
            raise ValueError(f'{source}: "{at}{part}": expected an object with one entry per input')


def _print(value: dict[str, Any], args: argparse.Namespace) -> None:
    """Print data as JSON; on a terminal, long lists are shortened."""
    is_full = args.full or not sys.stdout.isatty()
    print(json.dumps(value) if args.json else json_text(value, None if is_full else _MOST_ITEMS))


def _send(client: Client, request: JsonRequest, args: argparse.Namespace) -> None:
    shared = request.get("context")
    outputs = client.predict(
        request.get("dense"),
        request.get("sparse"),
        request.get("weights"),
        context=None if shared is None else Context(**shared),
    )
    answer = {name: (values if args.json else _rounded(values)).tolist() for name, values in outputs.items()}
    _print(answer, args)


def _rounded(values: NDArray[Any]) -> NDArray[Any]:
    """Return floats with six significant digits, all that is of use in a float32; integers as they are."""
    if values.dtype.kind == "i":
        return values
    return np.array([float(f"{value:.6g}") for value in values.ravel().tolist()]).reshape(values.shape)


def _run(client: Client, args: argparse.Namespace) -> None:
    if args.metadata:
        print(client.metadata(), end="")
    elif args.example:
        generator = np.random.default_rng(args.seed)
        _print(example_request(client.metadata(num_examples=_MOST_EXAMPLES), args.rows, generator), args)
    elif args.random:
        generator = np.random.default_rng(args.seed)
        metadata = client.metadata(num_examples=_MOST_EXAMPLES)
        _send(client, example_request(metadata, args.rows, generator), args)
    else:
        _send(client, read_request(args.json_request), args)


def _score(args: argparse.Namespace) -> int:
    """Score a table with an artifact in this process."""
    if args.explain:
        return _explain(args)
    if args.out is None:
        raise ValueError("--out: missing, expected the file for the scores of --data")
    if not is_address(args.address) and not Path(args.address).exists():
        raise ValueError(
            f"got {args.address!r} with --data, expected an artifact's path or address: a table is scored without a "
            "server"
        )
    # Torch and pyarrow are imported only when they are needed.
    check_address_space()
    from serve.tools.bulk import BulkJob, predict_table

    job = BulkJob(
        artifact=args.address,
        input=args.data,
        output=args.out,
        schema=args.schema,
        keep=args.keep,
        memory=RowsMemory(
            copy_rows=args.copy_rows,
            lock_rows=args.lock_rows,
            numa=args.numa,
            random_access=args.random_access,
        ),
    )
    num_rows = predict_table(job)
    if args.json:
        print(json.dumps({"num_rows": num_rows, "out": str(args.out)}))
    else:
        print(f"{num_rows:,} rows; wrote {args.out}")
    return 0


def _explain(args: argparse.Namespace) -> int:
    """Explain rows of a table."""
    if args.out is not None or not Path(args.address).exists():
        raise ValueError(
            f"--explain: got {args.address!r}, expected the .pt file of recsys-train, and no --out: it is printed"
        )
    from recsys.data.explain.command import explained, lines_of

    rows = explained(Path(args.address), args.data, args.rows)
    print(json.dumps([row.to_json() for row in rows]) if args.json else "\n".join(lines_of(rows)))
    return 0


def _settings(args: argparse.Namespace) -> Settings:
    return Settings(timeout_s=args.timeout_s, model=args.model, version=args.version, tls=tls_of(args))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    args = COMMAND.parse(argv)
    try:
        if args.data is not None:
            return _score(args)
        if args.explain:
            raise ValueError("--explain: got it without --data, expected the table whose rows are explained")
        with Client(args.address, settings=_settings(args)) as client:
            _run(client, args)
    except (InvalidRequestError, ValueError, OSError) as error:
        print(f"recsys-predict: {error}", file=sys.stderr)
        return 2
    except PredictError as error:
        print(f"recsys-predict: {error}", file=sys.stderr)
        return 1
    return 0


_WIDTH = 100
_INDENT = "  "
# Items of a shortened list: so many of the first, then the last.
_NUM_FIRST = 8


def json_text(value: Any, most_items: int | None = None) -> str:
    """Return a value as JSON in lines of up to 100 characters.

    Args:
        value: Plain data.
        most_items: Longer lists are shortened to their first items and the last, with the number of those left out
            in between; the text is no longer JSON then. None shortens nothing.
    """
    return _text(value, "", most_items)


def _text(value: Any, indent: str, most_items: int | None) -> str:
    if isinstance(value, dict) and value:
        items = [(f"{json.dumps(name)}: ", item) for name, item in value.items()]
        opening, closing = "{", "}"
    elif isinstance(value, list) and value:
        items = [("", item) for item in value]
        opening, closing = "[", "]"
    else:
        return json.dumps(value)
    texts = [name + _text(item, indent + _INDENT, most_items) for name, item in items]
    if isinstance(value, list) and most_items is not None and len(texts) > most_items:
        texts = [*texts[:_NUM_FIRST], f"… {len(texts) - _NUM_FIRST - 1} more …", texts[-1]]
    line = opening + ", ".join(texts) + closing
    # Objects in objects keep their lines, so that inputs stand below each other.
    nested = isinstance(value, dict) and any(isinstance(item, dict) and item for item in value.values())
    if not nested and "\n" not in line and len(indent) + len(line) <= _WIDTH:
        return line
    inner = indent + _INDENT
    if any("\n" in text for text in texts) or not all(_is_plain(item) for _, item in items):
        lines = [inner + text for text in texts]
    else:
        lines = _filled(texts, inner)
    return opening + "\n" + ",\n".join(lines) + "\n" + indent + closing


def _is_plain(value: Any) -> bool:
    return not isinstance(value, dict | list)


def _filled(texts: list[str], indent: str) -> list[str]:
    """Return the texts in as few lines as the width allows."""
    lines: list[str] = []
    for text in texts:
        if lines and len(lines[-1]) + len(text) + 3 <= _WIDTH:
            lines[-1] += ", " + text
        else:
            lines.append(indent + text)
    return lines


if __name__ == "__main__":
    sys.exit(main())
