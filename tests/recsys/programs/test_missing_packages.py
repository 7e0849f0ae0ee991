"""Without fbgemm-gpu, without torch, or with builds that do not fit: one line that says what to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from recsys.base.machine import install_command, package_version
from recsys.base.stack import STACKS, stack_of

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Nothing listens at port 1: commands that need no torch get as far as that.
_WORDS = {
    "recsys-train": ["--data", "synthetic", "--out", "model.pt"],
    "recsys-data": ["inspect", "clicks.csv"],
    "recsys-eval": ["model.artifact", "--data", "clicks.csv"],
    "recsys-plan": ["model.pt"],
    "recsys-export": ["model.pt"],
    "recsys-serve": ["model.artifact"],
    "recsys-predict": ["127.0.0.1:1", "--random", "--timeout-s", "1"],
    "recsys-admin": ["127.0.0.1:1", "list", "--timeout-s", "1", "--token-file", "token"],
    "recsys-bench": ["127.0.0.1:1", "--sender", "python", "--timeout-s", "1"],
    "recsys-profile": ["model.artifact"],
}
_NEED_TORCH = [
    "recsys-data",
    "recsys-train",
    "recsys-eval",
    "recsys-plan",
    "recsys-export",
    "recsys-serve",
    "recsys-profile",
]
# Packages that stand before the real ones on the path.
_MISSING = "raise ModuleNotFoundError(\"No module named '{0}'\", name='{0}')\n"
_OTHER_TORCH = """
import logging
import torch
logging.error("Could not load the library 'fbgemm_gpu_tbe.so'!\\n\\n\\nundefined symbol: _ZN3c10\\n\\n\\n")
raise OSError("/packages/fbgemm_gpu/fbgemm_gpu_tbe.so: undefined symbol: _ZN3c10")
"""
_STACK = stack_of(package_version("torch") or "") or STACKS[-1]
_FIX = f"pip install fbgemm-gpu-cpu=={_STACK.fbgemm} or, for CUDA, fbgemm-gpu=={_STACK.fbgemm}"
_CASES = {
    "no fbgemm-gpu": ({"fbgemm_gpu": _MISSING.format("fbgemm_gpu")}, "fbgemm-gpu is not installed: " + _FIX),
    "another torch": ({"fbgemm_gpu": _OTHER_TORCH}, "undefined symbol: _ZN3c10): " + _FIX),
    # Its libraries may load, and crash later: what pip installed is asked before.
    "another fbgemm-gpu": (
        {"fbgemm_gpu_cpu-1.2.0.dist-info": "Name: fbgemm-gpu-cpu\nVersion: 1.2.0\n"},
        f"got torch {package_version('torch')} with fbgemm-gpu-cpu 1.2.0: {_FIX}",
    ),
    "no torch": (
        {"torch": _MISSING.format("torch")},
        "torch is not installed: " + install_command(package="torch"),
    ),
}
_COMMANDS = """
import contextlib, importlib, io, json, sys
scripts, words = json.loads(sys.argv[1])
ended = {}
for program, place in scripts.items():
    module, name = place.split(":")
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        code = getattr(importlib.import_module(module), name)(words[program])
    ended[program] = [code, err.getvalue()]
print(json.dumps(ended))
"""


def _run(
    tmp_path: Path, packages: dict[str, str], code: str, *words: str
) -> subprocess.CompletedProcess[str]:
    for name, text in packages.items():
        (tmp_path / "shadow" / name).mkdir(parents=True)
        (
            tmp_path / "shadow" / name / ("METADATA" if name.endswith(".dist-info") else "__init__.py")
        ).write_text(text)
    path = os.pathsep.join([str(tmp_path / "shadow"), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(("packages", "text"), _CASES.values(), ids=_CASES)
def test_every_command_says_what_to_install(tmp_path: Path, packages: dict[str, str], text: str) -> None:
    (tmp_path / "token").write_text("secret-of-sixteen-characters\n")
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "model.artifact").mkdir()
    (tmp_path / "model.artifact" / "manifest.json").write_text("{}")
    done = _run(tmp_path, packages, _COMMANDS, json.dumps([PROJECT["scripts"], _WORDS]))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    ended: dict[str, Any] = json.loads(done.stdout)
    assert set(ended) == set(PROJECT["scripts"])
    for program, (code, err) in ended.items():
        assert err.startswith(f"{program}: ")
        assert err.count("\n") == 1, err
        assert (code, text in err) == ((2, True) if program in _NEED_TORCH else (1, False)), err


@pytest.mark.parametrize(("packages", "text"), _CASES.values(), ids=_CASES)
def test_the_library_raises_an_import_error(tmp_path: Path, packages: dict[str, str], text: str) -> None:
    code = "import recsys; recsys.QuantEmbeddingBagCollection"
    done = _run(tmp_path, packages, code)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("recsys.errors.UnusablePackageError: ")
    assert text in last


def test_other_import_errors_stay_as_they_are(tmp_path: Path) -> None:
    code = "from recsys.train.__main__ import main; main(['--data', 'synthetic'])"
    done = _run(tmp_path, {"numpy": _MISSING.format("numpy")}, code)
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'numpy'"
