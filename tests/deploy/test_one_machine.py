"""What runs the server on one machine: the compose file and the systemd unit."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from serve.app import options
from serve.config.sources import effective
from tests.deploy.manifests import ROOT, load

COMPOSE = ROOT / "deploy" / "compose"
SYSTEMD = ROOT / "deploy" / "systemd"
UNIT = SYSTEMD / "recsys-serve.service"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def service() -> dict[str, Any]:
    (only,) = load(COMPOSE / "compose.yaml")["services"].values()
    return dict(only)


def unit() -> dict[str, str]:
    """The last value of each key of the unit."""
    return dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))


@pytest.mark.parametrize("folder", [COMPOSE, SYSTEMD], ids=["compose", "systemd"])
def test_settings_are_those_of_the_server(folder: Path) -> None:
    config = effective({}, {}, folder / "serve.toml").settings.server
    grace = service()["stop_grace_period"].rstrip("s") if folder == COMPOSE else unit()["TimeoutStopSec"]
    assert float(grace) > config.drain_timeout_s


def test_compose_starts_the_image_of_this_version_with_its_settings() -> None:
    only = service()
    assert only["image"] == f"recsys-serve:{VERSION}"
    args = options.parser().parse_args(only["command"])
    volumes = {volume.split(":")[-2]: volume.rsplit(":", 1)[-1] for volume in only["volumes"]}
    settings = effective({}, {}, COMPOSE / "serve.toml").settings
    assert volumes == {str(settings.source.repository): "ro", str(args.config): "ro"}
    ports = [port.split(":") for port in only["ports"]]
    assert [(host, int(port)) for host, _, port in ports] == [
        ("127.0.0.1", settings.server.port),
        ("127.0.0.1", settings.server.metrics_port),
    ]


def test_compose_holds_no_rights() -> None:
    only = service()
    assert only["read_only"] is True
    assert only["cap_drop"] == ["ALL"]
    assert only["security_opt"] == ["no-new-privileges:true"]


def test_unit_starts_the_server_with_its_settings() -> None:
    program, *words = unit()["ExecStart"].split()
    assert Path(program).name == "recsys-serve"
    options.parser().parse_args(words)
    config = effective({}, {}, SYSTEMD / "serve.toml").settings.server
    assert config.admin is not None
    name, _, source = unit()["LoadCredential"].partition(":")
    assert config.admin.token_file == Path("/run/credentials") / UNIT.name / name
    assert source in (ROOT / "deploy" / "README.md").read_text()


def test_systemd_takes_the_unit_and_finds_it_closed(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    here = tmp_path / UNIT.name
    here.write_text(UNIT.read_text().replace("/opt/recsys/bin/recsys-serve", sys.executable))
    command = ["systemd-analyze", "--man=no", "--generators=no"]
    done = subprocess.run([*command, "verify", str(here)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, [line for line in done.stderr.splitlines() if UNIT.name in line]) == (0, [])
    # 0 of 10 is closed; systemd calls up to 2 safe.
    closed = ["security", "--offline=true", "--threshold=20", "--no-pager", str(here)]
    done = subprocess.run([command[0], *closed], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout[-2000:]
