"""What stops a server from starting, and says so; settings from file, environment and flags."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.support.artifacts import Exported
from tests.conformance.support.harness import ended, refused, running, spoil

PORTS = ("--port", "0", "--metrics-port", "none")
Arguments = Callable[[Path, Path], list[str]]


def _damaged(name: str, at: int) -> Arguments:
    def arguments(artifact: Path, folder: Path) -> list[str]:
        shutil.copytree(artifact, folder / "damaged")
        spoil(folder / "damaged" / name, at)
        return [str(folder / "damaged"), *PORTS]

    return arguments


def _both(artifact: Path, folder: Path) -> list[str]:
    (folder / "models").mkdir()
    return [str(artifact), "--repository", str(folder / "models"), *PORTS]


def _loop(_: Path, folder: Path) -> list[str]:
    (folder / "loop").symlink_to("loop")
    return [str(folder / "loop"), *PORTS]


def _file(text: str) -> Arguments:
    def arguments(artifact: Path, folder: Path) -> list[str]:
        (folder / "serve.toml").write_text(text)
        return [str(artifact), "--config", str(folder / "serve.toml")]

    return arguments


def _flags(*flags: str) -> Arguments:
    return lambda artifact, _: [str(artifact), *flags]


def _secret(mode: int, text: str = "a-token-of-the-tests") -> Arguments:
    def arguments(artifact: Path, folder: Path) -> list[str]:
        (folder / "token").write_text(text)
        (folder / "token").chmod(mode)
        return [str(artifact), *PORTS, "--admin-port", "0", "--admin-token-file", str(folder / "token")]

    return arguments


WRONG: dict[str, tuple[Arguments, str]] = {
    "unknown-flag": (_flags("--max-batch-row", "4"), "--max-batch-row"),
    "no-source": (lambda *_: [], "expected ARTIFACT or --repository"),
    "both-sources": (_both, "got an artifact (ARTIFACT) and a repository (--repository), expected one of them"),
    "missing-artifact": (lambda _, folder: [str(folder / "missing")], "artifact: got 'missing', which does not exist"),
    "artifact-that-is-a-loop": (_loop, "artifact: "),
    "missing-repository": (
        lambda _, folder: ["--repository", str(folder / "missing"), *PORTS],
        "recsys-serve: source.repository: cannot read",
    ),
    "empty-repository": (
        lambda _, folder: ["--repository", str(folder), *PORTS],
        "recsys-serve: source.repository: holds no model, expected at least one folder of versions\n",
    ),
    "missing-model": (
        lambda _, folder: ["--repository", str(folder), "--models", "nope", *PORTS],
        "recsys-serve: source.models: got 'nope', which is not there\n",
    ),
    "missing-cpus": (_flags("--cpus", "65000", *PORTS), "recsys-serve: defaults.cpus: got [65000], expected some of"),
    "missing-capture-folder": (
        _flags("--capture-path", "nowhere/requests", *PORTS),
        "recsys-serve: capture.path: got 'nowhere/requests', expected a file in a folder that can be written\n",
    ),
    "one-port-twice": (
        _flags("--port", "8500", "--metrics-port", "8500"),
        "recsys-serve: port and metrics_port: got 8500 for each, expected ports that differ\n",
    ),
    "no-artifact": (lambda _, folder: [str(folder)], "recsys-serve: "),
    "damaged-manifest": (_damaged("manifest.json", 0), "manifest"),
    "port-range": (_flags("--port", "99999"), "--port: port: got 99999, expected 0 to 65535"),
    "no-number": (_flags("--max-batch-rows", "many"), "--max-batch-rows"),
    "below-range": (_flags("--max-batch-rows", "0"), "max_batch_rows: got 0, expected at least 1"),
    "trace-endpoint": (_flags("--trace-endpoint", "nonsense"), "trace.endpoint: got 'nonsense'"),
    "unknown-key": (_file("[defaults.limits]\nmax_batch_row = 4\n"), "did you mean max_batch_rows?"),
    "no-toml": (_file("port = = 4\n"), "serve.toml"),
    "wrong-type": (_file('port = "many"\n'), "port: got 'many'"),
    "loose-token": (_secret(0o644), "token"),
    "short-token": (_secret(0o600, "short"), "token"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_start_that_cannot_be_is_refused_with_exit_code_2_and_the_reason(
    small: Exported, tmp_path: Path, name: str
) -> None:
    make, text = WRONG[name]
    code, said = refused(*make(small.path, tmp_path))
    assert (code, text in said) == (2, True), said
    assert "Traceback" not in said


def test_a_target_that_the_artifact_has_not_is_refused_and_the_check_finds_it(small: Exported) -> None:
    code, said = refused(small.path, "--target", "cuda:7", *PORTS)
    assert code == 2
    assert "target: got 'cuda:7', expected one of" in said.splitlines()[-1]
    code, report = check(small.path, "--target", "cuda:7")
    assert code == 2
    assert "got 'cuda:7'" in " ".join(map(str, report["errors"]))


def test_an_artifact_whose_rows_are_damaged_is_not_served(small: Exported, tmp_path: Path) -> None:
    code, said = refused(*_damaged("rows.bin", 100)(small.path, tmp_path))
    assert code == 2
    assert "the checksum does not match" in said.splitlines()[-1]
    assert "Traceback" not in said


def test_a_warm_up_file_that_is_no_capture_is_named(small: Exported, tmp_path: Path) -> None:
    (tmp_path / "requests").write_text("[]" * 20)
    code, said = refused(small.path, "--warm-up", tmp_path / "requests", *PORTS)
    assert (code, "Traceback" in said) == (2, False)
    assert "warm_up: header: got b'[][][][]'" in said.splitlines()[-1]


@pytest.mark.parametrize("flag", ["--port", "--metrics-port", "--http-port"])
def test_a_port_in_use_is_named_and_the_exit_code_is_1(small: Exported, flag: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ports = {"--port": "0", "--metrics-port": "none", "--http-port": "none", flag: str(port)}
        code, said = refused(small.path, *(word for pair in ports.items() for word in pair))
    assert code == 1
    assert str(port) in said.splitlines()[-1]
    assert "Traceback" not in said


def check(*arguments: str | Path, environment: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    """--check-config as scripts read it."""
    code, output, errors = ended(*arguments, "--check-config", "--json", environment=environment)
    assert errors == ""
    report: dict[str, Any] = json.loads(output)
    assert report["ok"] is (code == 0)
    return code, report


def test_a_flag_beats_the_environment_that_beats_the_file_that_beats_the_default(
    small: Exported, tmp_path: Path
) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(
        "port = 8600\nhttp_port = 8700\n[defaults.limits]\nmax_batch_rows = 64\nmax_batch_ids = 1000\n"
    )
    environment = {
        "RECSYS_SERVE_CONFIG": str(file),
        "RECSYS_SERVE_HTTP_PORT": "8701",
        "RECSYS_SERVE_DEFAULTS_LIMITS_MAX_BATCH_ROWS": "65",
    }
    code, report = check(small.path, "--max-batch-rows", "66", environment=environment)
    assert (code, report["errors"]) == (0, [])
    found = {key: one["value"] for key, one in report["settings"].items()}
    assert found["defaults.limits.max_batch_rows"] == 66
    assert found["http_port"] == 8701
    assert (found["port"], found["defaults.limits.max_batch_ids"]) == (8600, 1000)
    assert found["metrics_port"] == 8501
    assert report["settings"]["defaults.limits.max_batch_rows"]["from"] == "--max-batch-rows"
    assert report["settings"]["http_port"]["from"] == "RECSYS_SERVE_HTTP_PORT"


def test_a_check_finds_what_the_start_would(small: Exported, tmp_path: Path) -> None:
    arguments = _secret(0o644)(small.path, tmp_path)
    code, report = check(*arguments)
    assert code == 2
    assert "token" in " ".join(map(str, report["errors"]))
    code, report = check(small.path, "--port", "8500", "--metrics-port", "8500")
    assert code == 2
    assert "8500" in " ".join(map(str, report["errors"]))


def test_a_check_warns_of_an_address_that_is_open_to_the_network_without_tls(small: Exported) -> None:
    code, report = check(small.path, "--host", "0.0.0.0")
    assert (code, report["errors"]) == (0, [])
    assert "TLS" in " ".join(map(str, report["warnings"]))


def test_settings_of_the_file_and_the_environment_hold_in_the_server(small: Exported, tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(f'[source]\nartifact = "{small.path}"\n[defaults.limits]\nmax_request_rows = 3\n')
    environment = {
        "RECSYS_SERVE_CONFIG": str(file),
        "RECSYS_SERVE_DEFAULTS_LIMITS_MAX_REQUEST_IDS": "77",
        "RECSYS_SERVE_CONNECTIONS_MAX_MESSAGE_BYTES": "8KiB",
    }
    with running(folder=tmp_path, environment=environment) as server:
        limits = server.client().metadata().limits
        assert (limits.max_rows, limits.max_ids, limits.max_message_bytes) == (3, 77, 8192)
