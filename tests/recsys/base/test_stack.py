"""Releases of torch, fbgemm-gpu and torchrec: the installed ones are known, others are named before they are loaded."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path

import pytest

from recsys.base import machine, stack
from recsys.base.machine import package_version
from recsys.base.stack import STACKS, check_stack, main, stack_of, without_fbgemm_remarks
from recsys.errors import UnusablePackageError

_ROOT = Path(__file__).resolve().parents[3]
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
_FIX = "pip install fbgemm-gpu-cpu=={0} or, for CUDA, fbgemm-gpu=={0}"


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> object:
    """Let the given versions be the installed ones."""

    def installed(**versions: str) -> None:
        found = {name.replace("_", "-"): number for name, number in versions.items()}
        monkeypatch.setattr(stack, "package_version", found.get)
        monkeypatch.setattr(machine, "package_version", found.get)

    return installed


def test_the_installed_releases_are_known() -> None:
    torch = package_version("torch")
    assert torch is not None
    known = stack_of(torch)
    assert known is not None, f"torch {torch}: an unknown release; add it to STACKS in recsys/base/stack.py"
    builds = machine.package_versions(stack.FBGEMM_PACKAGES)
    assert list(builds.values()) == [known.fbgemm], f"unknown pair: torch {torch} with {builds}"
    torchrec = package_version("torchrec")
    assert torchrec in (None, known.torchrec), f"unknown pair: torch {torch} with torchrec {torchrec}"


def test_extras_have_the_releases_of_the_table() -> None:
    extras = _PROJECT["optional-dependencies"]
    newest, before = STACKS[-1], STACKS[-2]
    for suffix, each in (("", newest), ("-torch" + before.torch.replace(".", ""), before)):
        major, minor = each.torch.split(".")
        torch = f"torch>={each.torch},<{major}.{int(minor) + 1}"
        for build, package in (("cpu", "fbgemm-gpu-cpu"), ("cuda", "fbgemm-gpu")):
            assert extras[build + suffix][:2] == [f"{package}=={each.fbgemm}", torch]
    major, minor = newest.torch.split(".")
    assert f"torch>={STACKS[0].torch},<{major}.{int(minor) + 1}" in _PROJECT["dependencies"]
    cmake = (_ROOT / "cpp_client" / "cmake" / "RecsysTorch.cmake").read_text()
    assert f"VERSION_LESS {STACKS[0].torch} " in cmake
    assert f"VERSION_GREATER_EQUAL {major}.{int(minor) + 1})" in cmake


@pytest.mark.parametrize("torch", ["2.11.0", "2.13.1+cpu", "2.14.0a0+git5c4886", "2.14.1+cu130"])
def test_releases_that_fit(install: object, torch: str, caplog: pytest.LogCaptureFixture) -> None:
    known = stack_of(torch)
    assert known is not None
    patch_release = known.fbgemm[:-1] + "7"
    for versions in (
        {"fbgemm_gpu": known.fbgemm},
        {"fbgemm_gpu_cpu": patch_release},
        {"fbgemm_gpu_cpu": known.fbgemm, "fbgemm_gpu": "1.2.0"},  # which of them is imported cannot be told
        {"fbgemm_gpu_nightly_cpu": "2026.9.21"},
        {},
    ):
        install(torch=torch, **versions)
        check_stack()
    assert caplog.records == []


@pytest.mark.parametrize(
    ("torch", "versions", "text"),
    [
        (
            "2.14.1",
            {"fbgemm_gpu_cpu": "1.8.0"},
            "fbgemm-gpu does not fit torch: got torch 2.14.1 with fbgemm-gpu-cpu 1.8.0: "
            + _FIX.format("1.9.0"),
        ),
        (
            "2.13.0+cpu",
            {"fbgemm_gpu": "1.9.0"},
            "fbgemm-gpu does not fit torch: got torch 2.13.0+cpu with fbgemm-gpu 1.9.0: "
            + _FIX.format("1.8.0"),
        ),
        (
            "2.12.1",
            {"fbgemm_gpu": "1.2.0", "fbgemm_gpu_cpu": "2.0.0"},
            "got torch 2.12.1 with fbgemm-gpu-cpu 2.0.0 and fbgemm-gpu 1.2.0: " + _FIX.format("1.7.0"),
        ),
        (
            "2.15.0",
            {"fbgemm_gpu_cpu": "1.9.0"},
            "torch does not fit fbgemm-gpu: got torch 2.15.0 with fbgemm-gpu-cpu 1.9.0: pip install 'torch==2.14.*'",
        ),
    ],
)
def test_releases_that_do_not_fit(install: object, torch: str, versions: dict[str, str], text: str) -> None:
    install(torch=torch, **versions)
    with pytest.raises(UnusablePackageError) as caught:
        check_stack()
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.name == "fbgemm_gpu"


@pytest.mark.parametrize(("torch", "fbgemm"), [("2.15.0", "1.10.0"), ("3.0.0", "2.0.0"), ("2.10.0", "1.5.0")])
def test_an_unknown_pair_is_named_in_one_line(
    install: object, torch: str, fbgemm: str, caplog: pytest.LogCaptureFixture
) -> None:
    install(torch=torch, fbgemm_gpu_cpu=fbgemm)
    check_stack()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"torch {torch} with fbgemm-gpu-cpu {fbgemm} is an unknown pair: known are torch and fbgemm-gpu "
        "2.11 with 1.6, 2.12 with 1.7, 2.13 with 1.8, 2.14 with 1.9"
    )


def test_fbgemm_does_not_say_it_again(caplog: pytest.LogCaptureFixture) -> None:
    with without_fbgemm_remarks():
        logging.warning("\n  FBGEMM_GPU version is 1.9.0, which is not guaranteed to be compatible\n")
        logging.warning("\n  _fbgemm_torch_compat_table has no entry for 2.0.0 of FBGEMM;\n")
        logging.error("Could not load the library 'fbgemm_gpu_tbe.so'!")
    logging.warning("FBGEMM_GPU version is 1.9.0")
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


@pytest.mark.parametrize(
    ("torch", "printed"),
    [
        ("2.13.0+cpu", ["fbgemm-gpu-cpu==1.8.0", "torchrec==1.8.0"]),
        ("2.14.1", ["fbgemm-gpu-cpu==1.9.0", "torchrec==1.9.2"]),
    ],
)
def test_what_pip_has_to_install(
    install: object, torch: str, printed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    install(torch=torch)
    assert (main(["fbgemm"]), main(["torchrec"])) == (0, 0)
    assert capsys.readouterr().out.splitlines() == printed


def test_nothing_to_install_beside_an_unknown_torch(
    install: object, capsys: pytest.CaptureFixture[str]
) -> None:
    install(torch="2.15.0")
    assert main(["fbgemm"]) == 2
    install(torch="2.12.0")
    assert main(["torchrec"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "torch: got 2.15.0, expected 2.11, 2.12, 2.13, 2.14: no fbgemm is known to fit",
        "torch: got 2.12.0, expected 2.13, 2.14: no torchrec is known to fit",
    ]
