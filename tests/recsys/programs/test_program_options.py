"""Every command tells its version and completes its words in a shell."""

from __future__ import annotations

import importlib
import json
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import recsys

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


def _main(program: str) -> Callable[[list[str]], int]:
    module, _, name = SCRIPTS[program].partition(":")
    main: Callable[[list[str]], int] = getattr(importlib.import_module(module), name)
    return main


def _printed(program: str, *words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command prints to stdout; it ends with status 0."""
    try:
        code: object = _main(program)(list(words))
    except SystemExit as ended:
        code = ended.code or 0
    printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    return printed.out


@pytest.mark.parametrize("program", SCRIPTS)
def test_the_version(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _printed(program, "--version", capsys=capsys) == f"{program} {recsys.__version__}\n"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("recsys-train", ["--data", "synthetic", "--version"]),
        ("recsys-serve", ["--json", "--version"]),
        ("recsys-predict", ["127.0.0.1:1", "--version"]),
        ("recsys-bench", ["127.0.0.1:1", "--version"]),
    ],
)
def test_the_version_among_other_words(
    program: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _printed(program, *words, capsys=capsys) == f"{program} {recsys.__version__}\n"


def test_the_version_of_a_model_is_still_an_option() -> None:
    from serve.bench.cli import COMMAND as bench
    from serve.tools.admin import COMMAND as admin
    from serve.tools.predict import COMMAND as predict

    assert predict.parse(["a:1", "--random", "--version", "7"]).version == "7"
    assert predict.parse(["a:1", "--random"]).version == ""
    assert bench.parse(["a:1", "--version", "7"]).version == "7"
    assert bench.parse(["a:1"]).version is None
    assert admin.parse(["a:1", "load", "m", "--version", "7"]).version == "7"


def test_the_version_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from serve.app.__main__ import main; main(['--version'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"recsys-serve {recsys.__version__}\n"


# What is answered by each command without torch: its help, and an option that it does not have.
_QUICK = """
import contextlib, importlib, io, json, sys
sys.modules["torch"] = None
for program, place in json.loads(sys.argv[1]).items():
    module, name = place.split(":")
    for word, status, text in (("--help", 0, "usage: "), ("--nonsense", 2, "--nonsense")):
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                ended = getattr(importlib.import_module(module), name)([word])
        except SystemExit as exited:
            ended = exited.code or 0
        assert (ended, text in printed.getvalue()) == (status, True), (program, word, printed.getvalue())
"""


def test_help_and_wrong_options_need_no_torch() -> None:
    words = [
        sys.executable,
        "-c",
        _QUICK,
        json.dumps(SCRIPTS),
    ]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_commands_start_without_what_completes() -> None:
    code = (
        "import sys; from serve.tools.predict import COMMAND; COMMAND.parser(); print('shtab' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def _completions(script: str, program: str, *words: str, folder: Path) -> set[str]:
    """Return what bash offers for the last of the words."""
    line = shlex.join([program, *words])
    asked = f"""
        source /dev/stdin <<'SCRIPT'
{script}
SCRIPT
        COMP_WORDS=({line}) COMP_CWORD={len(words)}
        $(complete -p {program} | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", asked], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("program", "words", "expected"),
    [
        ("recsys-train", ["--ep"], {"--epochs"}),
        ("recsys-train", ["--model", "deep"], {"deepfm"}),
        ("recsys-train", ["--data", "criteo", "--path", "mo"], {"model.pt"}),
        ("recsys-plan", ["mo"], {"model.pt"}),
        ("recsys-plan", ["ca"], {"calibrate"}),
        ("recsys-plan", ["model.pt", "--world"], {"--world-size"}),
        ("recsys-export", ["mo"], {"model.pt"}),
        ("recsys-export", ["model.pt", "--dtype", "int"], {"int8", "int4", "int2"}),
        ("recsys-serve", ["mo"], {"model.pt"}),
        ("recsys-serve", ["--check-"], {"--check-config"}),
        ("recsys-predict", ["host:1", "--json-request", "mo"], {"model.pt"}),
        ("recsys-admin", ["host:1", "ro"], {"route", "rollback"}),
        ("recsys-admin", ["host:1", "route", "model", "--can"], {"--canary", "--canary-key"}),
        ("recsys-bench", ["host:1", "--sender", "na"], {"native"}),
        ("recsys-profile", ["mo"], {"model.pt"}),
        ("recsys-train", ["--optimizer", "adag"], {"adagrad"}),
    ],
)
def test_bash_completes(
    program: str, words: list[str], expected: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    (tmp_path / "model.pt").touch()
    script = _printed(program, "--print-completion", "bash", capsys=capsys)
    assert _completions(script, program, *words, folder=tmp_path) == expected


@pytest.mark.parametrize("shell", ["zsh", "fish", "tcsh"])
@pytest.mark.parametrize("program", SCRIPTS)
def test_other_shells_get_a_script(program: str, shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program in _printed(program, "--print-completion", shell, capsys=capsys)
