"""recsys-predict: send one request to a server and print its answer."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from recsys.cli import Parser
from recsys.files import parse_json
from serve.client import Client, Context, Settings
from serve.client.errors import InvalidRequestError, PredictError
from serve.client.sampling import JsonRequest, example_request
from serve.client.settings import add_tls_options, tls_of

_EPILOG = """\
example:
  recsys-predict 127.0.0.1:8500 --example > request.json
  recsys-predict 127.0.0.1:8500 --json-request request.json

A request in JSON, rows outermost ("weights" only for weighted inputs):
  {"dense": {"dense": [[0.5, 1.0]]}, "sparse": {"user": [[7]], "genres": [[1, 4]]}, "weights": {}}
Inputs that all rows share, each with one row, may stand under "context":
  {"sparse": {"genres": [[1, 4], [2]]}, "context": {"dense": {"dense": [[0.5, 1.0]]}, "sparse": {"user": [[7]]}}}

exit codes: 0 answered, 1 no answer, 2 bad usage or request
"""


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    top = Parser(
        prog="recsys-predict",
        usage="recsys-predict ADDRESS (--json-request FILE | --example | --random | --metadata) [option ...]",
        description="Send one request to a server and print its answer.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("address", help="host:port of a server")
    what = top.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--json-request", metavar="FILE", help="a request in JSON; - reads it from standard input"
    )
    what.add_argument("--example", action="store_true", help="print a request to fill in, send nothing")
    what.add_argument("--random", action="store_true", help="send a random request")
    what.add_argument("--metadata", action="store_true", help="print what the model takes and gives")
    top.add_argument("--rows", type=int, default=2, help="of the example or random request (default: 2)")
    top.add_argument("--seed", type=int, default=0, help="of the example or random request (default: 0)")
    top.add_argument("--model", default="", help="the model's name (default: the one that the server holds)")
    top.add_argument("--version", default="", help="of the model (default: the one that the server chooses)")
    top.add_argument("--timeout-s", type=float, default=10.0, help="default: 10")
    top.add_argument("--json", action="store_true", help="print the answer as JSON")
    add_tls_options(top)
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
    _check_parts(source, "", request, _PARTS | {"context"})
    if "context" in request:
        _check_parts(source, "context.", request["context"], _PARTS | {"num_rows"})
    checked: JsonRequest = request
    return checked


_PARTS = {"dense", "sparse", "weights"}


def _check_parts(source: str, at: str, request: object, known: set[str]) -> None:
    if not isinstance(request, dict) or not set(request) <= known:
        raise ValueError(
            f'{source}: {at or "got no request, or other parts:"} expected an object with "dense", "sparse" and, '
            'where used, "weights"' + (' and "context"' if "context" in known else "")
        )
    for part, inputs in request.items():
        if part == "num_rows":
            if type(inputs) is not int:
                raise ValueError(f'{source}: "{at}num_rows": expected a whole number')
        elif not isinstance(inputs, dict):
            raise ValueError(f'{source}: "{at}{part}": expected an object with one entry per input')


def _send(client: Client, request: JsonRequest, as_json: bool) -> None:
    shared = request.get("context")
    outputs = client.predict(
        request.get("dense"),
        request.get("sparse"),
        request.get("weights"),
        context=None if shared is None else Context(**shared),
    )
    if as_json:
        print(json.dumps({name: values.tolist() for name, values in outputs.items()}))
        return
    for name, values in outputs.items():
        print(f"{name} {list(values.shape)}")
        print(np.array2string(values, precision=6, threshold=64))


def _run(client: Client, args: argparse.Namespace) -> None:
    if args.metadata:
        print(client.metadata(), end="")
    elif args.example:
        generator = np.random.default_rng(args.seed)
        print(json.dumps(example_request(client.metadata(), args.rows, generator), indent=2))
    elif args.random:
        generator = np.random.default_rng(args.seed)
        _send(client, example_request(client.metadata(), args.rows, generator), args.json)
    else:
        _send(client, read_request(args.json_request), args.json)


def _settings(args: argparse.Namespace) -> Settings:
    return Settings(timeout_s=args.timeout_s, model=args.model, version=args.version, tls=tls_of(args))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    args = parser().parse_args(argv)
    try:
        if args.rows < 0:
            raise ValueError(f"--rows: got {args.rows}, expected 0 or more")
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
