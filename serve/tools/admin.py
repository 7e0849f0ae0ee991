"""recsys-admin: show and change the models of a running server."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from recsys.base.cli import Parser, add_program_options
from serve.client.errors import predict_error
from serve.client.settings import add_tls_options, checked_address, checked_timeout_s, tls_of
from serve.net.auth import read_token
from serve.wire import admin_pb2 as wire

_EPILOG = """\
examples:
  recsys-admin 127.0.0.1:8502 list
  recsys-admin 127.0.0.1:8502 load ranker --version 4
  recsys-admin 127.0.0.1:8502 route ranker --canary 4:10           10 percent of the requests to version 4
  recsys-admin 127.0.0.1:8502 route ranker --serve 4               version 4 stays until this is changed
  recsys-admin 127.0.0.1:8502 route ranker --serve latest --shadow 5:100
  recsys-admin 127.0.0.1:8502 rollback ranker
  recsys-admin 127.0.0.1:8502 delta ranker users-0001.delta
  recsys-admin 127.0.0.1:8502 unload ranker --version 3

The token: --token-file, or RECSYS_ADMIN_TOKEN_FILE in the environment.

exit codes: 0 done, 1 the server refused or cannot be reached, 2 bad usage
"""
_TOKEN_ENVIRONMENT = "RECSYS_ADMIN_TOKEN_FILE"
# Loading reads and checks every byte of a version.
_DEFAULT_TIMEOUT_S = 600.0
_PIPE_WIDTH = 120
_PROG = "recsys-admin ADDRESS"
_NO_ADMIN_PORT = "this is no admin port; expected the one that admin_port= names in the server's ready line"
_SERVICE = wire.DESCRIPTOR.services_by_name["AdminService"].full_name


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    top = Parser(
        prog="recsys-admin",
        usage="recsys-admin ADDRESS COMMAND [MODEL] [option ...]",
        description="Show and change what a running recsys-serve holds.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[_common(None, _DEFAULT_TIMEOUT_S)],
    )
    top.add_argument("address", metavar="ADDRESS", help="host:port of the admin service, or unix:PATH")
    add_program_options(top)
    # Common options are accepted before and after the command.
    common = _common(argparse.SUPPRESS, argparse.SUPPRESS)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", prog=_PROG)

    def add(name: str, about: str, words: str) -> argparse.ArgumentParser:
        usage = f"{_PROG} {name} {words}[option ...]"
        return commands.add_parser(name, help=about, usage=usage, parents=[common])

    add("list", "all models and versions", "")
    load = add("load", "load a version and warm it up", "MODEL ")
    unload = add("unload", "take a version out and free its memory", "MODEL ")
    route = add("route", "say which version answers", "MODEL ")
    rollback = add("rollback", "back to before the last change", "MODEL ")
    delta = add("delta", "change rows of a loaded version in place", "MODEL FILE ")
    for command in (load, unload, route, rollback, delta):
        command.add_argument("model", metavar="MODEL")
    delta.add_argument("delta", metavar="FILE", help="a name in the model's folder deltas, no path")
    load.add_argument("--version", default="", metavar="V", help="default: the newest in the repository")
    unload.add_argument("--version", default="", metavar="V", help="default: all of the model's")
    delta.add_argument("--version", default="", metavar="V", help="default: the one that answers")
    route.add_argument(
        "--serve", default="latest", metavar="V", help="latest (default), or a version that stays"
    )
    for name in ("canary", "shadow"):
        route.add_argument(
            f"--{name}", type=_share, default=("", 0.0), metavar="V:PERCENT", help=_SHARES[name]
        )
    route.add_argument(
        "--canary-key",
        default="",
        metavar="KEY",
        help="keep each client with one version: feature:NAME (a sparse input) or header:NAME",
    )
    return top


_SHARES = {
    "canary": "a version that answers a share of the requests",
    "shadow": "a version that computes a share of the requests beside the one that answers",
}


def _common(default: Any, timeout_s: Any) -> Parser:
    common = Parser(add_help=False, argument_default=default)
    common.add_argument("--token-file", type=Path, metavar="F", help="holds the bearer token")
    common.add_argument("--timeout-s", type=float, default=timeout_s, metavar="S", help="for the whole call")
    common.add_argument(
        "--json", action="store_true", default=default and argparse.SUPPRESS, help="print the answer as JSON"
    )
    add_tls_options(common)
    return common


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    args = parser().parse_args(argv)
    try:
        token = _token(args)
        channel = _channel(args)
    except ValueError as error:
        print(f"recsys-admin: {error}", file=sys.stderr)
        return 2
    try:
        with channel:
            answer = _call(_COMMANDS[args.command], args, channel, token)
            status = None if args.command != "load" or args.json else _status(args, channel, token)
    except grpc.RpcError as error:
        failed = predict_error(error, uses_tls=tls_of(args) is not None)
        message = _NO_ADMIN_PORT if failed.code is grpc.StatusCode.UNIMPLEMENTED else failed.message
        print(f"recsys-admin: {failed.code.name}: {message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("recsys-admin: interrupted; the server finishes what it has begun", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(_to_json(answer)))
        return 0
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    if status is not None:
        _show_routing(status, console)
    _COMMANDS[args.command].show(answer, console)
    return 0


def _call(command: _Command, args: argparse.Namespace, channel: grpc.Channel, token: str) -> Message:
    """Make the call of a command."""
    method = channel.unary_unary(
        f"/{_SERVICE}/{command.method}",
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=command.answer.FromString,
    )
    metadata = (("authorization", f"Bearer {token}"),)
    answer: Message = method(command.request(args), timeout=args.timeout_s, metadata=metadata)
    return answer


def _status(args: argparse.Namespace, channel: grpc.Channel, token: str) -> wire.ModelStatus | None:
    """Return the status of the model that the command names; None if it is gone."""
    listed: Any = _call(_COMMANDS["list"], args, channel, token)
    return next((status for status in listed.models if status.model == args.model), None)


def _set_routing(args: argparse.Namespace) -> Message:
    (canary, canary_percent), (shadow, shadow_percent) = args.canary, args.shadow
    routing = wire.Routing(
        serve=args.serve,
        canary=canary,
        canary_percent=canary_percent,
        canary_key=args.canary_key,
        shadow=shadow,
        shadow_percent=shadow_percent,
    )
    return wire.SetRoutingRequest(model=args.model, routing=routing)


def _token(args: argparse.Namespace) -> str:
    named = args.token_file or os.environ.get(_TOKEN_ENVIRONMENT)
    if not named:
        raise ValueError(f"--token-file: missing, expected it, or {_TOKEN_ENVIRONMENT} in the environment")
    return read_token(Path(named), key="--token-file")


def _channel(args: argparse.Namespace) -> grpc.Channel:
    address = checked_address(args.address)
    checked_timeout_s(args.timeout_s)
    tls = tls_of(args)
    if tls is None:
        return grpc.insecure_channel(address)
    return grpc.secure_channel(address, tls.credentials())


def _share(text: str) -> tuple[str, float]:
    version, _, percent = text.rpartition(":")
    if not version or not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,6})?%?", percent):
        raise argparse.ArgumentTypeError(
            f"got {text[:80]!r}, expected a version and its percent, such as 4:10"
        )
    return version, float(percent.removesuffix("%"))


def _to_json(answer: Message) -> Any:
    """Return all fields, including empty ones; integers as numbers, states as short names."""
    data = MessageToDict(answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return _plain(data)


def _plain(data: Any) -> Any:
    if isinstance(data, dict):
        plain = {key: _plain(value) for key, value in data.items()}
        for name in ("table_bytes", "num_pending"):
            if name in plain:  # protobuf writes an int64 as a string
                plain[name] = int(plain[name])
        return plain
    if isinstance(data, list):
        return [_plain(value) for value in data]
    return _state(data) if isinstance(data, str) and data.startswith("MODEL_STATE_") else data


def _state(name: str) -> str:
    return name.removeprefix("MODEL_STATE_").lower()


def _show_models(answer: wire.ListModelsResponse, console: Console) -> None:
    for status in answer.models:
        _show_model(status, console)
    if not answer.models:
        console.print("no models")


def _show_model(status: wire.ModelStatus, console: Console) -> None:
    _show_routing(status, console)
    _show_versions(status.versions, console)


def _show_routing(status: wire.ModelStatus, console: Console) -> None:
    routing = status.routing
    parts = [f"serve {routing.serve}"]
    for name in ("canary", "shadow"):
        if getattr(routing, name):
            parts.append(f"{name} {getattr(routing, name)} ({getattr(routing, name + '_percent'):g} %)")
    if routing.canary_key:
        parts.insert(2, f"by {routing.canary_key}")
    title = f"{status.model}: {', '.join(parts)}; answers: {status.serving or 'none'}"
    console.print(Text(title), soft_wrap=True)
    if routing.serve not in ("latest", status.serving):
        cure = f"load it, or run {_PROG} route {status.model} --serve latest"
        console.print(Text(f"version {routing.serve} is pinned and not loaded: {cure}"), soft_wrap=True)


def _show_version(version: wire.ModelVersion, console: Console) -> None:
    _show_versions([version], console)


def _show_versions(versions: Sequence[wire.ModelVersion], console: Console) -> None:
    """Print a table; text from the server is never interpreted as markup."""
    table = Table(box=SIMPLE_HEAD)
    follows = any(version.HasField("stream") for version in versions)
    deltas = "last delta" if follows else "deltas"
    for heading in (
        "version",
        "state",
        "tables",
        "digest",
        deltas,
        *(["stream"] if follows else []),
        "reason",
    ):
        table.add_column(heading, justify="right" if heading == "tables" else "left", overflow="fold")
    for version in versions:
        is_loaded = version.state in (wire.MODEL_STATE_READY, wire.MODEL_STATE_DRAINING)
        cells = (
            version.version,
            _state(wire.ModelState.Name(version.state)),
            decimal(version.table_bytes) if is_loaded else "",
            version.digest,
            *(_stream(version) if follows else [", ".join(version.deltas)]),
            version.reason or version.stream.reason,
        )
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)


def _stream(version: wire.ModelVersion) -> tuple[str, str]:
    """Return the last delta and the state of a version's stream."""
    stream = version.stream
    waiting = f", {stream.num_pending} waiting" if stream.num_pending else ""
    return stream.last, f"{stream.state}{waiting}"


@dataclass(frozen=True)
class _Command:
    """A command: its call, and the display of the answer."""

    method: str
    request: Callable[[argparse.Namespace], Message]
    answer: type[Message]
    show: Callable[[Any, Console], None]


_COMMANDS = {
    "list": _Command("ListModels", lambda _: wire.ListModelsRequest(), wire.ListModelsResponse, _show_models),
    "load": _Command(
        "LoadModel",
        lambda args: wire.LoadModelRequest(model=args.model, version=args.version),
        wire.ModelVersion,
        _show_version,
    ),
    "unload": _Command(
        "UnloadModel",
        lambda args: wire.UnloadModelRequest(model=args.model, version=args.version),
        wire.UnloadModelResponse,
        lambda _, console: console.print("unloaded"),
    ),
    "route": _Command("SetRouting", _set_routing, wire.ModelStatus, _show_model),
    "rollback": _Command(
        "Rollback", lambda args: wire.RollbackRequest(model=args.model), wire.ModelStatus, _show_model
    ),
    "delta": _Command(
        "ApplyDelta",
        lambda args: wire.ApplyDeltaRequest(model=args.model, version=args.version, delta=args.delta),
        wire.ModelVersion,
        _show_version,
    ),
}


if __name__ == "__main__":
    sys.exit(main())
