"""recsys-admin: show and change the models of a running server."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from recsys.base.terminal import whole_table
from recsys.options.kinds import PATH, TEXT, Kind
from recsys.options.table import Command, Group, Option, json_option
from serve.client.errors import predict_error
from serve.client.settings import checked_address
from serve.net.auth import read_token
from serve.tools.client_options import TLS, timeout_option, tls_of
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
_LOADED = (wire.MODEL_STATE_READY, wire.MODEL_STATE_DRAINING)
_PROG = "recsys-admin ADDRESS"
_NO_ADMIN_PORT = "this is no admin port; expected the one that admin_port= names in the server's ready line"
_SERVICE = wire.DESCRIPTOR.services_by_name["AdminService"].full_name


_MODEL = Option("model", TEXT, "", required=True)


def _share(text: str) -> tuple[str, float]:
    version, _, percent = text.rpartition(":")
    if not version or not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,6})?%?", percent):
        raise ValueError
    return version, float(percent.removesuffix("%"))


_NONE = ("", 0.0)
_SHARE = Kind(
    expected="a version and its percent, such as 4:10", parse=_share, example="4:10", metavar="V:PERCENT"
)


def _version(default: str) -> Option:
    return Option("--version", TEXT, f"default: {default}", default="", metavar="V")


def _command(name: str, about: str, *options: Option) -> Command:
    return Command(
        program=f"{_PROG} {name}",
        summary=about,
        about=f"{about[0].upper()}{about[1:]}.",
        epilog=f"example:\n  recsys-admin 127.0.0.1:8502 {_CALLS[name]}\n",
        groups=(Group("", options),),
        has_program_options=False,
    )


_CALLS = {
    "list": "list",
    "load": "load ranker --version 4",
    "unload": "unload ranker --version 3",
    "route": "route ranker --canary 4:10",
    "rollback": "rollback ranker",
    "delta": "delta ranker users-0001.delta",
}
_DELTA = Option("delta", TEXT, "a name in the model's folder deltas, no path", required=True, metavar="FILE")
_ROUTING = (
    Option("--serve", TEXT, "latest, or a version that stays", default="latest", metavar="V"),
    Option("--canary", _SHARE, "a version that answers a share of the requests"),
    Option(
        "--shadow",
        _SHARE,
        "a version that computes a share of the requests beside the one that answers",
    ),
    Option(
        "--canary-key",
        TEXT,
        "keep each client with one version: feature:NAME (a sparse input) or header:NAME",
        default="",
        metavar="KEY",
    ),
)
COMMAND = Command(
    program="recsys-admin",
    usage="recsys-admin ADDRESS COMMAND [MODEL] [option ...]",
    about="Show and change what a running recsys-serve holds.",
    epilog=_EPILOG,
    groups=(
        Group(
            "",
            (
                Option("address", TEXT, "host:port of the admin service, or unix:PATH", required=True),
                Option("--token-file", PATH, "holds the bearer token", environment=_TOKEN_ENVIRONMENT),
                timeout_option("for the whole call", _DEFAULT_TIMEOUT_S),
                json_option("print the answer as one JSON object and nothing else"),
            ),
        ),
        TLS,
    ),
    commands={
        "list": _command("list", "all models and versions"),
        "load": _command(
            "load", "load a version and warm it up", _MODEL, _version("the newest in the repository")
        ),
        "unload": _command(
            "unload", "take a version out and free its memory", _MODEL, _version("all of the model's")
        ),
        "route": _command("route", "say which version answers", _MODEL, *_ROUTING),
        "rollback": _command("rollback", "back to before the last change", _MODEL),
        "delta": _command(
            "delta",
            "change rows of a loaded version in place",
            _MODEL,
            _DELTA,
            _version("the one that answers"),
        ),
    },
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    args = COMMAND.parse(argv)
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
    (canary, canary_percent), (shadow, shadow_percent) = args.canary or _NONE, args.shadow or _NONE
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
    if args.token_file is None:
        raise ValueError(f"--token-file: missing, expected it, or {_TOKEN_ENVIRONMENT} in the environment")
    return read_token(args.token_file, key="--token-file")


def _channel(args: argparse.Namespace) -> grpc.Channel:
    address = checked_address(args.address)
    tls = tls_of(args)
    if tls is None:
        return grpc.insecure_channel(address)
    return grpc.secure_channel(address, tls.credentials())


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
    """Print a table."""
    follows = any(version.HasField("stream") for version in versions)
    of_deltas = ("last delta", "stream") if follows else ("deltas",)
    headings = ("version", "state", "tables", "digest", *of_deltas, "reason")
    rows = [
        (
            version.version,
            _state(wire.ModelState.Name(version.state)),
            decimal(version.table_bytes) if version.state in _LOADED else "",
            version.digest,
            *(_stream(version) if follows else [", ".join(version.deltas)]),
            version.reason or version.stream.reason,
        )
        for version in versions
    ]
    console.print(whole_table("", headings, rows, left=set(range(len(headings))) - {2}))


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
