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

from recsys.base.cli import Parser, VersionAction, add_program_options, check_address_space
from recsys.base.files import parse_json
from recsys.rows.memory import NUMA, RowsMemory
from serve.client import Client, Context, Settings
from serve.client.errors import InvalidRequestError, PredictError
from serve.client.sampling import JsonRequest, example_request
from serve.client.settings import add_tls_options, tls_of
from serve.tools.json_text import json_text

_EPILOG = """\
example:
  recsys-predict 127.0.0.1:8500 --example > request.json
  recsys-predict 127.0.0.1:8500 --json-request request.json
  recsys-predict model.artifact --input big.parquet --output scores.parquet --keep user_id

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


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    top = Parser(
        prog="recsys-predict",
        usage="recsys-predict ADDRESS (--json-request FILE | --example | --random | --metadata) [option ...], or "
        "recsys-predict ARTIFACT --input TABLE --output FILE",
        description="Send one request to a server and print its answer, or score a table with an artifact.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("address", help="host:port of a server, or unix:PATH; with --input, an artifact")
    what = top.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--json-request", metavar="FILE", help="a request in JSON; - reads it from standard input"
    )
    what.add_argument(
        "--example",
        action="store_true",
        help="print a request to fill in, send nothing: rows like those of the training where the model has some, else "
        "random ones",
    )
    what.add_argument("--random", action="store_true", help="send such a request")
    what.add_argument("--metadata", action="store_true", help="print what the model takes and gives")
    what.add_argument(
        "--input",
        type=Path,
        metavar="TABLE",
        help="score a CSV, Parquet, ORC, Feather or JSON-lines file, a folder or a pattern",
    )
    top.add_argument("--output", type=Path, metavar="FILE", help="where the scores go: .parquet or .csv")
    top.add_argument("--keep", default="", metavar="NAME,NAME", help="columns of the table to write too")
    top.add_argument("--schema", type=Path, metavar="FILE", help="of the table (default: the artifact's)")
    top.add_argument(
        "--copy-rows", action="store_true", help="of the artifact: hold its rows in private memory"
    )
    top.add_argument("--lock-rows", action="store_true", help="lock them in memory")
    top.add_argument("--numa", choices=NUMA, help="NUMA nodes of copied rows (default: the system's choice)")
    top.add_argument(
        "--random-access",
        action=argparse.BooleanOptionalAction,
        help="read mapped rows in single pages (default: if they exceed three quarters of the memory)",
    )
    top.add_argument("--rows", type=int, default=2, help="of the example or random request (default: 2)")
    top.add_argument("--seed", type=int, default=0, help="of the example or random request (default: 0)")
    top.add_argument("--model", default="", help="the model's name (default: the one that the server holds)")
    top.add_argument(
        "--version",
        action=VersionAction,
        nargs="?",
        default="",
        metavar="V",
        help="of the model (default: the one that the server chooses); without V, print the program's version",
    )
    top.add_argument("--timeout-s", type=float, default=10.0, help="default: 10")
    top.add_argument(
        "--json", action="store_true", help="print the answer, or the example, as one line of JSON"
    )
    top.add_argument("--full", action="store_true", help="print long lists in full on a terminal too")
    add_tls_options(top)
    add_program_options(top, version=False)
    return top


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
    if args.output is None:
        raise ValueError("--output: missing, expected the file for the scores of --input")
    if not Path(args.address).exists():
        raise ValueError(
            f"got {args.address!r} with --input, expected the path of an artifact: a table is scored without a server"
        )
    # Torch and pyarrow are imported only when they are needed.
    check_address_space()
    from serve.tools.bulk import BulkJob, predict_table

    job = BulkJob(
        artifact=Path(args.address),
        input=args.input,
        output=args.output,
        schema=args.schema,
        keep=tuple(name for name in args.keep.split(",") if name),
        memory=RowsMemory(
            copy_rows=args.copy_rows,
            lock_rows=args.lock_rows,
            numa=args.numa,
            random_access=args.random_access,
        ),
    )
    print(f"{predict_table(job):,} rows; wrote {args.output}")
    return 0


def _settings(args: argparse.Namespace) -> Settings:
    return Settings(timeout_s=args.timeout_s, model=args.model, version=args.version, tls=tls_of(args))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    args = parser().parse_args(argv)
    try:
        if args.rows < 0:
            raise ValueError(f"--rows: got {args.rows}, expected 0 or more")
        if args.input is not None:
            return _score(args)
        with Client(args.address, settings=_settings(args)) as client:
            _run(client, args)
    except (InvalidRequestError, ValueError, OSError) as error:
        print(f"recsys-predict: {error}", file=sys.stderr)
        return 2
    except PredictError as error:
        print(f"recsys-predict: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
