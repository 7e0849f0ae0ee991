"""Starts the server under test and says where it listens. Cases know an address, artifacts and protocols, no more.

``RECSYS_CONFORMANCE_ENGINE`` names the engine that answers, ``reference`` or ``native``. ``RECSYS_CONFORMANCE_SERVER``
names another command in place of ``recsys-serve``, with the same flags.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import grpc

from serve.bench.environment import scrape
from serve.client import PREDICT, Client, Retries, Settings
from serve.wire import admin_pb2_grpc
from tests.support.fork_server import Forked

ENGINE = os.environ.get("RECSYS_CONFORMANCE_ENGINE", "reference")
_OTHER = os.environ.get("RECSYS_CONFORMANCE_SERVER")
_SERVER = [sys.executable, "-m", "serve.app.cli"] if _OTHER is None else shlex.split(_OTHER)
COMMAND = [*_SERVER, "--engine", ENGINE]
TOKEN = "a-token-of-the-tests"
# Longer than any server takes to start or to stop on a busy machine.
_PATIENCE_S = 120.0


@dataclass(kw_only=True)
class ServerUnderTest:
    """A running server.

    Attributes:
        process: its process.
        ready: the line that said that it is ready.
        log: where its standard error goes.
    """

    process: subprocess.Popen[str] | Forked
    ready: Mapping[str, Any]
    log: Path
    _open: ExitStack = field(default_factory=ExitStack)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ready['port']}"

    @property
    def metrics_address(self) -> str:
        return f"127.0.0.1:{self.ready['metrics_port']}"

    @property
    def http_address(self) -> str:
        return f"127.0.0.1:{self.ready['http_port']}"

    @property
    def admin_address(self) -> str:
        return f"127.0.0.1:{self.ready['admin_port']}"

    def client(self, **settings: Any) -> Client:
        """A client with a connection of its own, closed with the server."""
        return self._open.enter_context(
            Client(
                self.address,
                settings=Settings(**{"timeout_s": 60.0, "retries": Retries(max_attempts=1), **settings}),
            )
        )

    def channel(self, address: str | None = None) -> grpc.Channel:
        """A connection of its own, closed with the server."""
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))
        return self._open.enter_context(grpc.insecure_channel(address or self.address, options=options))

    def predict_bytes(self, channel: grpc.Channel | None = None) -> grpc.UnaryUnaryMultiCallable:
        """``Predict`` as bytes, past every check of a client."""
        return (channel or self.channel()).unary_unary(PREDICT)

    def admin(self) -> Admin:
        """The admin service, with the token."""
        return Admin(self.channel(self.admin_address))

    def metrics(self) -> dict[str, float]:
        """Each sample by its name and labels."""
        return scrape(self.metrics_address)

    def total(self, name: str, **labels: str) -> float:
        """The sum of all samples of that name that carry these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            value
            for sample, value in self.metrics().items()
            if sample.partition("{")[0] == name and all(label in sample for label in wanted)
        )

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def rss_bytes(self) -> int:
        """Resident memory of the process that cannot be had again from a file: anonymous pages."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) * 1024

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> tuple[int, dict[str, Any]]:
        """SIGTERM, and wait: the exit code and the last line."""
        self.signal(signal.SIGTERM)
        return self.finish()

    def finish(self) -> tuple[int, dict[str, Any]]:
        """Wait for the end: the exit code and the last line."""
        output, _ = self.process.communicate(timeout=_PATIENCE_S)
        return self.process.returncode, json.loads(output.splitlines()[-1])


class Admin:
    """Calls of the admin service by name, with the token."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._stub = admin_pb2_grpc.AdminServiceStub(channel)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        call = getattr(self._stub, method)

        def with_token(request: Any, **options: Any) -> Any:
            metadata = (("authorization", f"Bearer {TOKEN}"),)
            return call(request, metadata=metadata, **{"timeout": _PATIENCE_S, **options})

        return with_token


def _started(
    command: list[str], errors: IO[str], environment: Mapping[str, str]
) -> subprocess.Popen[str] | Forked:
    """Start a command, or fork what it would be where it is our own."""
    if _OTHER is None:
        return Forked(command[1:], cwd=Path.cwd(), environment=environment, streams=(None, errors.fileno()))
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=dict(environment))


@contextmanager
def running(
    *arguments: str | Path, folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[ServerUnderTest]:
    """Start a server and wait until it is ready; at the end it is gone, whatever happened.

    Args:
        arguments: of the command, beside the ports, which the system chooses.
        folder: for its log; an empty one of the test's own.
        environment: variables beside our own.
    """
    log = folder / "server.log"
    command = [*COMMAND, *map(str, arguments), "--port", "0", "--metrics-port", "0", "--json"]
    with (
        log.open("a") as errors,
        _started(command, errors, {**os.environ, **(environment or {})}) as process,
        ExitStack() as opened,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"the server did not start: {log.read_text()}"
            yield ServerUnderTest(process=process, ready=json.loads(line), log=log, _open=opened)
        finally:
            opened.close()
            if process.poll() is None:
                process.kill()


def refused(*arguments: str | Path) -> tuple[int, str]:
    """Start a server that must not start: its exit code, and what it says."""
    code, _, said = ended(*arguments)
    return code, said


def ended(*arguments: str | Path, environment: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Run a command that ends by itself: its exit code, standard output and standard error."""
    command = [*COMMAND, *map(str, arguments)]
    with (
        TemporaryFile("w+") as errors,
        _started(command, errors, {**os.environ, **(environment or {})}) as process,
    ):
        output, _ = process.communicate(timeout=_PATIENCE_S)
        errors.seek(0)
        return int(process.returncode or 0), output, errors.read()


def with_admin(folder: Path) -> list[str]:
    """The arguments that open the admin port, with ``TOKEN``."""
    token = folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    return ["--admin-port", "0", "--admin-token-file", str(token)]


def put_version(repository: Path, model: str, version: str, artifact: Path) -> Path:
    """Copy an artifact into a repository as its exporter would put it there: whole, in one step."""
    target = repository / model / version
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.with_name(f".{version}.part")
    shutil.copytree(artifact, work)
    work.rename(target)
    return target


def spoil(path: Path, at: int = -1) -> None:
    """Change one byte of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def status_of(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    """How a call ended: its status and text; OK where it was answered."""
    try:
        call()
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""
