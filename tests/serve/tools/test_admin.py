"""recsys-admin as operators and scripts call it, against a real server."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from recsys.artifact.delta import apply as delta
from recsys.artifact.load import load_rows
from serve.config.models import ModelSettings
from serve.tools import admin as admin_cli
from tests.recsys.artifact.delta.deltas import write_delta
from tests.support.serve.admin_live import admin_live, write_token
from tests.support.serve.certificates import Authority, write_tls
from tests.support.serve.live import LiveServer

# No server listens on the discard port of loopback.
NOBODY = "127.0.0.1:9"
_Run = Callable[[Sequence[str]], tuple[int, str, str]]


def _with_server(
    scenario: Callable[[_Run], None],
    folder: Path,
    artifact: Path,
    capsys: pytest.CaptureFixture[str],
    settings: ModelSettings | None = None,
) -> None:
    """Run the command in a thread beside a server; a call gives the exit code, and what was printed."""

    async def run() -> None:
        async with admin_live(folder, artifact, settings=settings) as live:

            def command(arguments: Sequence[str]) -> tuple[int, str, str]:
                capsys.readouterr()
                code = admin_cli.main([live.address, *arguments, "--token-file", str(live.token_file)])
                return code, *capsys.readouterr()

            await asyncio.to_thread(scenario, command)

    asyncio.run(run())


def _json(answer: tuple[int, str, str]) -> Any:
    code, out, err = answer
    assert (code, err) == (0, "")
    return json.loads(out)


def test_all_commands_in_an_operators_day(
    artifact_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def scenario(run: _Run) -> None:
        (model,) = _json(run(["list", "--json"]))["models"]
        assert (model["model"], model["serving"]) == ("small", "2")
        loaded = _json(run(["load", "small", "--version", "1", "--json"]))
        assert (loaded["version"], loaded["state"]) == ("1", "ready")
        assert type(loaded["table_bytes"]) is int
        assert loaded["deltas"] == []
        routed = _json(
            run(
                [
                    "--json",
                    "route",
                    "small",
                    "--canary",
                    "1:12.5",
                    "--shadow",
                    "1:100%",
                    "--canary-key",
                    "header:x",
                ]
            )
        )
        assert routed["routing"] == {
            "serve": "latest",
            "canary": "1",
            "canary_percent": 12.5,
            "canary_key": "header:x",
            "shadow": "1",
            "shadow_percent": 100.0,
        }
        assert _json(run(["route", "small", "--serve", "1", "--json"]))["serving"] == "1"
        assert _json(run(["rollback", "small", "--json"]))["serving"] == "2"
        assert _json(run(["route", "small", "--json"]))["routing"]["serve"] == "latest"
        assert _json(run(["unload", "small", "--version", "1", "--json"])) == {}

    _with_server(scenario, tmp_path, artifact_path, capsys)


def test_people_get_tables(artifact_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def scenario(run: _Run) -> None:
        code, out, _ = run(["list"])
        assert code == 0
        assert "small: serve latest; answers: 2\n" in out
        assert [line.split()[:2] for line in out.splitlines() if line.strip()[:1].isdigit()][-1] == [
            "2",
            "ready",
        ]
        _, out, _ = run(["route", "small", "--canary", "1:10"])
        assert "small: serve latest, canary 1 (10 %); answers: 2\n" in out
        assert run(["load", "small", "--version", "1"])[1].split()[-5:-3] == ["1", "ready"]
        assert run(["unload", "small"])[1] == "unloaded\n"
        assert "answers: none" in run(["list"])[1]

    _with_server(scenario, tmp_path, artifact_path, capsys)


def test_a_pinned_version_that_is_not_loaded_is_named_with_the_cure(
    artifact_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lacks = (
        "small: serve 1; answers: none\nversion 1 is pinned and not loaded: load it, or run recsys-admin ADDRESS "
        "route small --serve latest\n"
    )

    def scenario(run: _Run) -> None:
        out = run(["load", "small", "--version", "1"])[1]
        assert out.startswith("small: serve latest; answers: 2\n")
        assert "2" not in [line.split()[0] for line in out.splitlines()[1:] if line.strip()]
        run(["route", "small", "--serve", "1"])
        assert run(["rollback", "small"])[1].splitlines()[0] == "small: serve 2; answers: 2"
        run(["route", "small", "--serve", "1"])
        run(["unload", "small"])
        for command in (["load", "small"], ["list"]):
            code, out, err = run(command)
            assert (code, err) == (0, "")
            assert out.startswith(lacks)
        assert run(["load", "small", "--version", "1"])[1].splitlines()[0] == "small: serve 1; answers: 1"

    _with_server(scenario, tmp_path, artifact_path, capsys)


def test_the_list_shows_how_far_a_version_follows_its_deltas(
    artifact_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "stream"
    folder.mkdir()
    rows = load_rows(artifact_path)
    write_delta(folder / "first.delta", rows, {"plain.users": [3]})
    delta.apply(delta.prepare(rows, folder / "first.delta"))
    write_delta(folder / "missing.delta", rows, {"plain.users": [4]})
    delta.apply(delta.prepare(rows, folder / "missing.delta"))
    write_delta(folder / "third.delta", rows, {"plain.users": [5]})
    (folder / "missing.delta").unlink()

    def versions(run: _Run) -> Any:
        (model,) = _json(run(["list", "--json"]))["models"]
        return model["versions"]

    def scenario(run: _Run) -> None:
        deadline_s = time.monotonic() + 60
        while versions(run)[-1]["stream"]["state"] != "gap":
            assert time.monotonic() < deadline_s
        stream = versions(run)[-1]["stream"]
        assert (stream["last"], stream["num_pending"]) == ("first.delta", 1)
        assert stream["last_created_s"] > 0
        assert "third.delta follows state" in stream["reason"]
        assert "stream" not in versions(run)[0]  # version 1 is not loaded
        out = run(["list"])[1]
        assert re.search(r"version +state +tables +digest +last delta +stream +reason", out)
        assert re.search(r"2 +ready .* first.delta +gap, 1 waiting +delta third.delta", out)
        code, _, err = run(["delta", "small", "first.delta"])
        assert code == 1
        assert "takes its deltas from a stream of its own" in err

    settings = ModelSettings(deltas=folder, poll_deltas_s=0.02)
    _with_server(scenario, tmp_path, artifact_path, capsys, settings)


def test_what_the_server_refuses_is_one_line_and_exit_code_1(
    artifact_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def scenario(run: _Run) -> None:
        for arguments, text in (
            (["load", "other"], "recsys-admin: NOT_FOUND: model: got 'other'"),
            (["load", "small", "--version", "9"], "recsys-admin: NOT_FOUND: version: got '9'"),
            (["delta", "small", "missing"], "recsys-admin: NOT_FOUND: delta: got 'missing'"),
            (["route", "small", "--canary", "1:0"], "recsys-admin: INVALID_ARGUMENT: routing.canary_percent"),
            (["rollback", "small"], "recsys-admin: FAILED_PRECONDITION: "),
        ):
            code, out, err = run(arguments)
            assert (code, out) == (1, "")
            assert err.startswith(text)
            assert err.count("\n") == 1

    _with_server(scenario, tmp_path, artifact_path, capsys)


def test_another_token_is_refused_and_the_environment_can_name_the_file(
    artifact_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "wrong"
    folder.mkdir()
    wrong = write_token(folder, "another-token-than-the-servers")

    async def scenario() -> None:
        async with admin_live(tmp_path, artifact_path) as live:
            assert (
                await asyncio.to_thread(admin_cli.main, [live.address, "list", "--token-file", str(wrong)])
                == 1
            )
            assert "UNAUTHENTICATED" in capsys.readouterr().err
            monkeypatch.setenv("RECSYS_ADMIN_TOKEN_FILE", str(live.token_file))
            assert await asyncio.to_thread(admin_cli.main, [live.address, "list"]) == 0

    asyncio.run(scenario())


def test_tls_with_the_callers_own_certificate(
    artifact_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority, clients = Authority(), Authority("clients")
    tls = write_tls(tmp_path, authority.issue(), clients.certificate)
    operator = clients.issue("operator")
    for name, data in (("ca", authority.certificate), ("crt", operator.certificate), ("key", operator.key)):
        (tmp_path / name).write_bytes(data)

    async def scenario() -> None:
        async with admin_live(tmp_path, artifact_path, tls) as live:
            common = [live.address, "--token-file", str(live.token_file), "list"]
            trusts = ["--tls-ca", str(tmp_path / "ca")]
            shows = ["--tls-certificate", str(tmp_path / "crt"), "--tls-key", str(tmp_path / "key")]
            assert await asyncio.to_thread(admin_cli.main, common + trusts + shows) == 0
            capsys.readouterr()
            for arguments, hints in ((common, True), (common + trusts, False)):
                assert await asyncio.to_thread(admin_cli.main, arguments) == 1
                err = capsys.readouterr().err
                assert "UNAVAILABLE" in err
                assert ("the server may want TLS" in err) == hints

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        pytest.param(["list"], "--token-file: missing", id="no-token"),
        pytest.param(
            ["list", "--token-file", "missing"], "--token-file: cannot read 'missing'", id="token-file"
        ),
        pytest.param(["list", "--token-file", "TOKEN", "--tls-ca", "missing"], "No such file", id="ca"),
        pytest.param(
            ["list", "--token-file", "TOKEN", "--tls-key", "k"], "got one of them, expected both", id="half"
        ),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    arguments: list[str],
    text: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RECSYS_ADMIN_TOKEN_FILE", raising=False)
    token = str(write_token(tmp_path))
    assert admin_cli.main([NOBODY, *(token if word == "TOKEN" else word for word in arguments)]) == 2
    err = capsys.readouterr().err
    assert text in err
    assert err.startswith("recsys-admin: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [[], ["lst"], ["load"], ["route", "small", "--canary", "4"], ["route", "small", "--canary", "4:x"]],
    ids=" ".join,
)
def test_unknown_words_are_bad_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        admin_cli.main([NOBODY, *arguments])
    assert caught.value.code == 2
    assert "recsys-admin" in capsys.readouterr().err


def test_without_a_server_it_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert admin_cli.main([NOBODY, "list", "--token-file", str(write_token(tmp_path))]) == 1
    assert "UNAVAILABLE" in capsys.readouterr().err


def test_another_port_of_a_server_is_said_to_be_none_of_ours(
    live: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admin_cli.main([live.address, "list", "--token-file", str(write_token(tmp_path))]) == 1
    err = capsys.readouterr().err
    assert err.startswith(
        "recsys-admin: UNIMPLEMENTED: this is no admin port; expected the one that admin_port="
    )
    assert err.count("\n") == 1


def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        admin_cli.main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text
    assert "exit codes: 0" in text


def test_it_imports_without_torch() -> None:
    code = "import sys, serve.tools.admin; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
