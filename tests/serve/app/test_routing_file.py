"""Routing that operators set, over restarts of a real server and changes of its settings."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from serve.config.models import Routing
from serve.models.routing_file import RoutingFile, RoutingFileError
from serve.tools.admin import main as admin_main
from tests.support.serve.admin_live import write_token
from tests.support.serve.repositories import add_version
from tests.support.serve.spawned import ROOT, spawned

SETTINGS = """
port = 0
metrics_port = "none"
[source]
repository = "models"
[admin]
port = 0
token_file = "admin.token"
"""
PIN_2 = '[models.ranker.routing]\nserve = "2"\n'


@dataclass
class Running:
    """A server with an admin port."""

    folder: Path
    pid: int
    address: str
    log: Path

    def admin(self, *words: str) -> subprocess.CompletedProcess[str]:
        token = ["--token-file", str(self.folder / "admin.token")]
        out, errors = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(errors):
            code = admin_main([self.address, *words, *token])
        return subprocess.CompletedProcess(words, code, out.getvalue(), errors.getvalue())

    def serving(self) -> str:
        (status,) = json.loads(self.admin("list", "--json").stdout)["models"]
        return str(status["serving"])

    def reload(self, line: str) -> str:
        """Send SIGHUP and wait for a line of the log."""
        before = len(self.log.read_text())
        os.kill(self.pid, signal.SIGHUP)
        tick = threading.Event()
        for _ in range(3000):
            if re.search(line, self.log.read_text()[before:]):
                break
            tick.wait(0.05)
        return self.log.read_text()[before:]


class Folder:
    """Settings, a token and a repository of the versions 1, 2 and 3."""

    def __init__(self, path: Path, artifacts: dict[str, Path]) -> None:
        self.path = path
        write_token(path)
        self.routings = path / "serve.routing.json"
        for version in ("1", "2", "3"):
            add_version(path / "models", "ranker", version, artifacts[version])
        self.write("")

    def write(self, routing: str) -> None:
        (self.path / "serve.toml").write_text(SETTINGS + routing)

    @contextmanager
    def running(self, *flags: str) -> Iterator[Running]:
        command = [sys.executable, "-m", "serve.app", "--config", str(self.path / "serve.toml"), "--json"]
        log = self.path / "log"
        with spawned([*command, *flags], log) as server:
            address = f"127.0.0.1:{server.ready['admin_port']}"
            yield Running(self.path, server.process.pid, address, log)
            server.process.send_signal(signal.SIGTERM)
            assert server.finish()[0] == 0

    def refused(self) -> str:
        command = [sys.executable, "-m", "serve.app", "--config", str(self.path / "serve.toml")]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 2
        return ended.stderr


@pytest.fixture
def folder(tmp_path: Path, artifacts: dict[str, Path]) -> Folder:
    return Folder(tmp_path, artifacts)


def test_routing_survives_a_restart_until_the_settings_change(folder: Folder) -> None:
    with folder.running() as server:
        assert server.serving() == "3"
        assert server.admin("route", "ranker", "--serve", "1", "--canary", "3:10").returncode == 0
    with folder.running() as server:
        assert server.serving() == "1"
        assert "routing: serve 1, canary 3 (10 %), as operators set it" in server.log.read_text()
        assert server.admin("route", "ranker", "--serve", "latest").returncode == 0
        assert server.admin("rollback", "ranker").returncode == 0
    with folder.running() as server:
        assert server.serving() == "1"
    folder.write(PIN_2)
    with folder.running() as server:
        assert server.serving() == "2"
        assert "routing: serve 2, as in the settings, which have changed since" in server.log.read_text()
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "admin.token",
        "log",
        "models",
        "serve.routing.json",
        "serve.toml",
    ]


def test_sighup_reads_the_routing_again(folder: Folder) -> None:
    with folder.running() as server:
        folder.write(PIN_2)
        assert "nothing new" not in server.reload("as in the settings")
        assert server.serving() == "2"
        assert "INFO serve: SIGHUP: nothing new" in server.reload("nothing new")
        server.admin("route", "ranker", "--serve", "1")
        log = server.reload("as operators set it")
        assert "routing: serve 1, as operators set it, not serve 2 as in the settings" in log
        assert server.serving() == "1"
        folder.write(PIN_2.replace("2", "7"))
        assert "cannot switch to serve 7" in server.reload("cannot switch")
        assert server.serving() == "1"
        folder.write("[models.ranker.routing\n")
        assert "cannot be read again" in server.reload("cannot be read again")
        folder.write("")
        server.reload("as in the settings")
        assert server.serving() == "3"
    assert json.loads(folder.routings.read_text())["models"] == {}


def test_a_file_that_cannot_be_written_refuses_a_routing(folder: Folder) -> None:
    state = folder.path / "state"
    state.mkdir()
    with folder.running("--admin-routing-file", str(state / "routing.json")) as server:
        state.rmdir()
        refused = server.admin("route", "ranker", "--serve", "1")
        assert refused.returncode == 1
        assert "admin.routing_file: cannot write" in refused.stderr
        assert server.serving() == "3"
    with folder.running("--admin-routing-file", "none") as server:
        assert server.admin("route", "ranker", "--serve", "1").returncode == 0
        assert re.search("does not survive a restart: .* --admin-routing-file FILE", server.log.read_text())
    assert not folder.routings.exists()


def test_a_link_stays_one(tmp_path: Path) -> None:
    link, file = tmp_path / "link.json", tmp_path / "file.json"
    link.symlink_to(file)
    canary = Routing(canary="2", canary_percent=5.0)
    RoutingFile(link).keep("ranker", canary, Routing())
    assert link.is_symlink()
    assert RoutingFile(file).routing_of("ranker", Routing()) == canary


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to itself"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "routing.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path)
    with pytest.raises(RoutingFileError, match=r"admin.routing_file: cannot (read|write) .*routing.json"):
        RoutingFile(path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "\x00",
        '{"format": "recsys-routing/1"}',
        '{"format": "recsys-routing/1", "models": {"ranker": {"routing": {}, "settings": {}}}}',
        '{"format": "recsys-routing/1", "models": 3}',
    ],
)
def test_a_damaged_file_is_one_line(folder: Folder, content: str) -> None:
    folder.routings.write_text(content)
    lines = [line for line in folder.refused().splitlines() if " WARNING " not in line]  # of the engine
    assert [line for line in lines if line.startswith("recsys-serve:")] == lines
    assert "admin.routing_file: cannot read" in lines[0]
    assert "delete it" in lines[0]
