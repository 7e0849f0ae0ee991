"""What a client is told before it connects is checked before it connects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from serve import bench
from serve.client import AsyncClient, Client, ClientTls, Settings
from serve.client.settings import checked_address
from serve.tools import admin as admin_cli
from serve.tools import predict
from serve.wire import predict_pb2 as wire
from tests.support.serve.certificates import Authority

_NOBODY = "127.0.0.1:9"
_WRONG_ADDRESSES = (
    "",
    "localhost",
    "http://localhost:8500",
    "localhost:",
    ":8500",
    "a:0",
    "a:65536",
    "a b:1",
    "::1:8500",
    "[::1]",
    "ipv6:::1:8500",
    "unix:",
    "unix://host/path",
    "unix:folder/",
    "\udcff:1",
    "unix:\udcff",
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files that fit together, and of some that do not."""
    folder = tmp_path_factory.mktemp("pem")
    authority = Authority()
    pair, other = authority.issue(), authority.issue()
    for name, data in (
        ("ca", authority.certificate),
        ("crt", pair.certificate),
        ("key", pair.key),
        ("other.key", other.key),
        ("locked.key", authority.issue(password=b"secret").key),
        ("text", b"no PEM"),
        ("empty", b""),
    ):
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("address", _WRONG_ADDRESSES)
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    for connect in (Client, AsyncClient):
        with pytest.raises(
            ValueError, match=r"^address: got .*, expected host:port(, with brackets around IPv6, .*)?$"
        ):
            connect(address)


@pytest.mark.parametrize(
    "address",
    [
        "a:1",
        "[::1]:8500",
        "dns:///a:1",
        "dns:a:1",
        "ipv4:127.0.0.1:1",
        "ipv6:[::1]:1",
        "unix:a",
        "unix:///a/b",
    ],
)
def test_addresses_of_grpc_are_taken(address: str) -> None:
    assert checked_address(address) == address


@pytest.mark.parametrize("address", ["localhost:8500", "[::1]:1", "a.b:65535", "dns:///all.of.them:8500"])
def test_addresses_that_can_be_are_left_alone(address: str) -> None:
    assert checked_address(address) == address


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"timeout_s": 0}, "timeout_s: got 0, expected more than 0 seconds"),
        ({"timeout_s": -1.5}, "timeout_s: got -1.5"),
        ({"timeout_s": float("nan")}, "timeout_s: got nan"),
        ({"timeout_s": "10"}, "timeout_s: got '10'"),
        ({"priority": "HIGH"}, "priority: got 'HIGH', expected one of .*wire.PRIORITY_HIGH, .*PRIORITY_LOW"),
        ({"priority": 77}, "priority: got 77"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Settings(**settings)


def test_files_may_be_named_by_text_or_path(files: Path) -> None:
    ClientTls(ca=str(files / "ca"), certificate=files / "crt", key=str(files / "key")).credentials()
    ClientTls().credentials()


@pytest.mark.parametrize("half", ["certificate", "key"])
def test_a_certificate_and_its_key_come_together(half: str) -> None:
    with pytest.raises(ValueError, match="got one of them, expected both or none"):
        ClientTls(**{half: "file"})


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ({"ca": "missing"}, "tls.ca: cannot read .*missing.*No such file"),
        ({"ca": "text"}, "tls.ca: got .*text.*expected certificates in PEM"),
        ({"ca": "empty"}, "tls.ca: got .*empty.*expected certificates in PEM"),
        ({"certificate": "missing", "key": "key"}, "tls.certificate: cannot read .*missing"),
        ({"certificate": "text", "key": "key"}, "tls.certificate, tls.key: got .*text"),
        ({"certificate": "crt", "key": "other.key"}, "tls.certificate, tls.key: got .*other.key"),
        ({"certificate": "crt", "key": "locked.key"}, "tls.key: .*is encrypted"),
    ],
)
def test_files_are_tried_before_anything_is_sent(names: dict[str, str], text: str, files: Path) -> None:
    tls = ClientTls(**{key: files / name for key, name in names.items()})
    for connect in (Client, AsyncClient):
        with pytest.raises(ValueError, match=text):
            connect(_NOBODY, settings=Settings(tls=tls))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["http://localhost:8500", "--random"], "address: got 'http://localhost:8500', expected host:port"),
        ([_NOBODY, "--random", "--tls-certificate", "x"], "tls.certificate, tls.key: got one of them"),
        ([_NOBODY, "--random", "--tls-ca", "/missing"], "tls.ca: cannot read '/missing'"),
    ],
)
def test_predict_says_so_in_one_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict.main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"recsys-predict: {text}")
    assert err.count("\n") == 1


def test_predict_refuses_a_wrong_option_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        predict.main([_NOBODY, "--random", "--timeout-s", "0"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "recsys-predict: --timeout-s: got '0', expected a number above 0\n"


def test_the_other_tools_check_addresses_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef")
    token.chmod(0o600)
    assert admin_cli.main(["http://localhost:1", "list", "--token-file", str(token)]) == 2
    assert "recsys-admin: address: got 'http://localhost:1'" in capsys.readouterr().err
    assert bench.main(["http://localhost:1"]) == 2
    assert "recsys-bench: address: got 'http://localhost:1'" in capsys.readouterr().err


@pytest.mark.parametrize("given", [None, "ERROR"])
def test_grpc_writes_no_lines_of_its_own_unless_asked(given: str | None) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "GRPC_VERBOSITY"}
    environment |= {} if given is None else {"GRPC_VERBOSITY": given}
    code = "import json, os, serve.client; print(json.dumps(os.environ['GRPC_VERBOSITY']))"
    told = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    )
    assert json.loads(told.stdout) == (given or "NONE")


def test_requests_of_a_stream_keep_the_model_version_and_priority_that_they_name() -> None:
    settings = Settings(model="ranker", version="3", priority=wire.PRIORITY_LOW)
    own = wire.PredictRequest(model="other", version="7", priority=wire.PRIORITY_HIGH)
    assert settings.finish(own) == wire.PredictRequest(
        model="other", version="7", priority=wire.PRIORITY_HIGH
    )
    # The client's version is one of its own model.
    assert settings.finish(wire.PredictRequest(model="other")) == wire.PredictRequest(
        model="other", priority=wire.PRIORITY_LOW
    )
    assert settings.finish(wire.PredictRequest(model="ranker")).version == "3"
    assert settings.finish(wire.PredictRequest(version="4")) == wire.PredictRequest(
        model="ranker", version="4", priority=wire.PRIORITY_LOW
    )


def test_a_request_that_is_sent_by_two_clients_goes_to_the_model_of_each() -> None:
    request = wire.PredictRequest(request_id="a")
    first, second = Settings(model="first"), Settings(model="second", priority=wire.PRIORITY_HIGH)
    assert first.finish(request).model == "first"
    assert second.finish(request) == wire.PredictRequest(
        request_id="a", model="second", priority=wire.PRIORITY_HIGH
    )
    assert request == wire.PredictRequest(request_id="a")
