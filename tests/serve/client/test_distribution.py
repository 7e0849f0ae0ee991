"""The distribution of the client alone: it predicts in an environment that has no torch."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import numpy as np
import pytest

from serve.client import Client
from serve.client.sampling import example_request
from tests.support.serve.live import LiveServer

_ROOT = Path(__file__).parents[3]
_SOURCE = _ROOT / "clients" / "python"
_VERSION = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["version"]
# Packages that it requires, by the distributions that have them.
_REQUIRED = {"grpcio": "grpc", "numpy": "numpy", "protobuf": "google"}
_PREDICT = """
import json, sys
import numpy as np
from recsys.client import Client
from serve.client.sampling import example_request

with Client(sys.argv[1], timeout_s=30) as client:
    answer = client.predict(**example_request(client.metadata(), 3, np.random.default_rng(7)))
foreign = {name.partition(".")[0] for name in sys.modules} & {"export", "torch", "pyarrow", "rich"}
print(json.dumps({"scores": answer["score"].tolist(), "foreign": sorted(foreign)}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, as ``make client-wheel`` builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.rmtree(_SOURCE / "build", ignore_errors=True)
    options = ["-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(_SOURCE)], check=True, timeout=120)
    (made,) = folder.glob("recsys_serving_client-*-py3-none-any.whl")
    return made


def test_it_requires_no_torch_and_has_the_version_of_the_project(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_string(archive.read(name).decode())
        licenses = [name for name in archive.namelist() if name.endswith("/LICENSE")]
    required = {each.split(">")[0].split("<")[0] for each in metadata.get_all("Requires-Dist", [])}
    assert required == set(_REQUIRED)
    assert f"-{metadata['Version']}-" in wheel.name
    assert metadata["Version"] == _VERSION
    assert licenses


def test_it_predicts_in_an_empty_environment(wheel: Path, live: LiveServer, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True, with_pip=False)
    (packages,) = environment.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    for package in (*_REQUIRED.values(), "typing_extensions"):  # which grpcio requires
        _link(package, packages)
    done = subprocess.run(
        [environment / "bin" / "python", "-I", "-c", _PREDICT, live.address],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    with Client(live.address, timeout_s=30) as client:
        expected = client.predict(**example_request(client.metadata(), 3, np.random.default_rng(7)))
    assert got["foreign"] == []
    np.testing.assert_array_equal(np.float32(got["scores"]), expected["score"])


def _link(package: str, packages: Path) -> None:
    """Link a package, and the libraries that its wheel put beside it, from this environment."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    path = Path(next(iter(spec.submodule_search_locations or [spec.origin or ""])))
    for found in (path, path.with_name(f"{package}.libs")):
        if found.exists():
            (packages / found.name).symlink_to(found)
