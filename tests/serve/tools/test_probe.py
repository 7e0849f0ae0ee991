"""The probe tells servers that serve, servers that only answer, and servers that are not there apart."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from serve.tools import probe
from tests.support.serve.certificates import Authority

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server that is loading: ``ready`` serves, everything else does not yet."""
    server = grpc.server(ThreadPoolExecutor(1))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    servicer.set("", NOT_SERVING)
    servicer.set("ready", SERVING)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--service", "ready"], 0, "SERVING"),
        ([], 1, "NOT_SERVING"),
        (["--alive"], 0, "NOT_SERVING"),
        (["--service", "unknown"], 1, "NOT_FOUND"),
        (["--service", "unknown", "--alive"], 1, "NOT_FOUND"),
    ],
)
def test_says_what_the_server_says(
    address: str, arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert probe.main([address, *arguments]) == code
    assert capsys.readouterr().out.startswith(text)


def test_nobody_there_is_not_alive(capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main(["127.0.0.1:1", "--alive"]) == 1
    assert capsys.readouterr().out.startswith("UNAVAILABLE")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--ca", "nowhere.pem"], "nowhere.pem"),
        (["--server-name", "x"], "need --ca"),
        (["--ca", "a", "--key", "k"], "expected both or none"),
        (["--timeout-s", "0"], "--timeout-s: got '0', expected a number above 0"),
    ],
)
def test_bad_usage_is_2(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        probe.main(["127.0.0.1:1", *arguments])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_starts_without_torch() -> None:
    code = "import sys, serve.probe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.fixture(scope="module")
def over_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A ready server that asks clients for certificates, and the folder with everybody's files."""
    folder, authority = tmp_path_factory.mktemp("tls"), Authority()
    of_server, of_client = authority.issue(), authority.issue("client")
    (folder / "ca.crt").write_bytes(authority.certificate)
    (folder / "stranger.crt").write_bytes(Authority("stranger").certificate)
    (folder / "client.crt").write_bytes(of_client.certificate)
    (folder / "client.key").write_bytes(of_client.key)
    server = grpc.server(ThreadPoolExecutor(1))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    servicer.set("", SERVING)
    credentials = grpc.ssl_server_credentials(
        [(of_server.key, of_server.certificate)], authority.certificate, require_client_auth=True
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    yield f"127.0.0.1:{port}", folder
    server.stop(None).wait()


@pytest.mark.parametrize(
    ("ca", "shows", "server_name", "code"),
    [
        ("ca.crt", True, "localhost", 0),
        ("ca.crt", True, "", 0),
        ("ca.crt", True, "somebody-else", 1),
        ("ca.crt", False, "localhost", 1),
        ("stranger.crt", True, "localhost", 1),
    ],
)
def test_speaks_tls(over_tls: tuple[str, Path], ca: str, shows: bool, server_name: str, code: int) -> None:
    address, folder = over_tls
    shown = [f"--certificate={folder / 'client.crt'}", f"--key={folder / 'client.key'}"] if shows else []
    named = [f"--server-name={server_name}"] if server_name else []
    assert probe.main([address, f"--ca={folder / ca}", *shown, *named]) == code
