"""The faces of export and serve, run by programs beside files of the same names."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import recsys


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, which comes first in its path, with this project behind it."""
    root = str(Path(recsys.__file__).resolve().parent.parent)
    program = f"import sys; sys.path.append({root!r}); " + words[1] if words[0] == "-c" else ""
    command = [sys.executable, "-c", program] if program else [sys.executable, *words]
    environment = {"PATH": "/usr/bin:/bin", **({} if program else {"PYTHONPATH": root})}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def taken(tmp_path: Path) -> Path:
    """A folder whose files have the packages' names."""
    for name in ("serve.py", "export.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong file was imported')\n")
    return tmp_path


@pytest.mark.parametrize("module", ["recsys.client", "recsys.export", "recsys.serve"])
def test_every_name_is_there(module: str) -> None:
    face = importlib.import_module(module)
    assert all(getattr(face, name) is not None for name in face.__all__)
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'nothing'"):
        face.nothing  # noqa: B018


@pytest.mark.parametrize(
    "program",
    [
        "from recsys.client import Client, PredictError; print(Client.__module__)",
        "from recsys.export import ExportConfig; print(ExportConfig().targets)",
        "from recsys.serve import main; print(main.__name__)",
    ],
)
def test_files_of_the_same_names_are_not_imported(taken: Path, program: str) -> None:
    ran = run(taken, "-c", program)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout


def test_another_module_of_the_name_is_named(taken: Path) -> None:
    (taken / "serve.py").write_text("")
    ran = run(taken, "-c", "import serve; from recsys.client import Client")
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith(
        f"ImportError: serve: got {str(taken / 'serve.py')!r}, imported before"
    )


@pytest.mark.parametrize("name", ["serve", "export"])
def test_faces_are_commands(name: str) -> None:
    ran = run(Path("/"), "-m", f"recsys.{name}", "--help")
    assert ran.stdout.startswith(f"usage: recsys-{name}"), ran.stderr
