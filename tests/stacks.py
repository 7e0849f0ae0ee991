"""A smoke on the stacks that the development environment does not have: other releases of Python and torch.

    python -m tests.stacks [--install] FOLDER [PYTHON ...]

For each Python, by default 3.11, 3.12 and 3.13, that is on this machine: an environment in FOLDER, which is used again
while what it installs stays the same; then imports, the demo, and the conformance cases of one model on the reference
engine. All run on a copy of the checkout, in which nothing is written. Nothing may print a warning. The time of each
step is printed.

With --install nothing runs: the environments are there for a later call, which need not wait for pip.

What cannot be tried, for want of the Python or of space on the disk, is said and skipped.

Exit status: 0 all is well, 1 something is wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from recsys.base.stack import STACKS

ROOT = Path(__file__).resolve().parent.parent
#: Each with the newest torch that FBGEMM fits. The development environment has Python 3.11 and the torch before.
PYTHONS = ("3.11", "3.12", "3.13")
STACK = STACKS[-1]
#: The project's groups that the smoke's tests need.
TESTS = ("aiohttp", "hypothesis", "pytest", "pytest-timeout", "pytest-xdist", "tritonclient")
CASES = (
    "tests/conformance/protocols/test_predict.py",
    "tests/recsys/base/test_stack.py",
    "tests/recsys/scripting/test_torchscript.py",
)
TIMEOUT_S = 1800
#: What installing an environment takes of the disk, with CUDA's libraries, which the first one brings.
NEEDED_BYTES = 8 << 30
# Not of the project, of an earlier run, or for one Python and torch.
_LEFT_OUT = shutil.ignore_patterns(
    ".*", "build", "dist", "demo", "hourly", "runs", "*.egg-info", "*.artifact", "*.pt", "*.so", "__pycache__"
)
# Installing is the disk's work: one after the other.
_INSTALLING = threading.Lock()
# What torch's wheel for Linux needs for CUDA, in the same files for every Python. torch imports without the others.
_CUDA = ("nvidia-", "cuda-toolkit")
_ONLY_CUDA = ("cuda-bindings", "triton")
_REQUIREMENTS = """
import json
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
found = [Requirement(line) for line in requires("torch")]
found = [each for each in found if not each.marker or each.marker.evaluate({"extra": ""})]
print(json.dumps([str(each).partition(";")[0] for each in found]))
"""
_IMPORTS = """
import export.pipeline, recsys, recsys.train.__main__, serve.app.start, serve.client, torch
for name in recsys.__all__:
    getattr(recsys, name)
"""


class StackError(Exception):
    """A step has failed; the message is what it printed."""


class NoSpaceError(Exception):
    """The disk has no space for an environment; the message says how much it needs."""


@dataclass(frozen=True)
class Environment:
    """An environment of one stack.

    Attributes:
        python: The minor release of Python.
        folder: Where it lies.
    """

    python: str
    folder: Path

    @property
    def interpreter(self) -> Path:
        """The interpreter of the environment."""
        return self.folder / "bin" / "python"

    @property
    def checkout(self) -> Path:
        """The copy of the checkout that is installed."""
        return self.folder / "checkout"

    def run(self, *words: str, env: dict[str, str] | None = None) -> str:
        """Run the interpreter at the root of the copy; return what it printed on both outputs.

        Raises:
            StackError: Its exit status is not 0.
        """
        done = subprocess.run(
            [str(self.interpreter), *words],
            cwd=self.checkout,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        if done.returncode:
            raise StackError(f"{' '.join(words)[:200]}: exit status {done.returncode}\n{done.stdout[-4000:]}")
        return done.stdout

    def pip(self, *words: str) -> None:
        """Install packages."""
        self.run("-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", *words)


def requirements() -> list[str]:
    """Return what the project and the smoke's tests need, without torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    tests = [each for name in ("dev", "peer") for each in groups[name] if each.startswith(TESTS)]
    return [each for each in project["project"]["dependencies"] if not each.startswith("torch")] + tests


def find_python(python: str) -> str | None:
    """Return an interpreter of a minor release, from the path or pyenv's folder; None if none runs."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for found in (f"python{python}", *sorted(map(str, pyenv.glob(f"{python}.*/bin/python")))):
        try:
            subprocess.run([found, "-c", "import ensurepip, venv"], check=True, capture_output=True)
        except (OSError, subprocess.SubprocessError):
            continue  # also pyenv's stand-in for a version that is not chosen
        return found
    return None


def install(python: str, interpreter: str, folder: Path) -> Environment:
    """Return the environment of a Python, installed where it is missing or something else is needed.

    The project itself is not installed in it.

    Args:
        python: The minor release.
        interpreter: The Python that makes the environment.
        folder: Where the environments lie.

    Raises:
        NoSpaceError: It has to be installed, and the disk has no space for it.
    """
    made = Environment(python, folder / f"python{python}")
    wanted = [f"torch=={STACK.torch}.*", f"fbgemm-gpu-cpu=={STACK.fbgemm}", *requirements()]
    key = _digest(wanted)
    complete = made.folder / "complete"
    if not complete.exists() or complete.read_text() != key:
        shutil.rmtree(made.folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if free < NEEDED_BYTES:
            raise NoSpaceError(f"{free >> 30} GiB are free in {folder}, and it may take {NEEDED_BYTES >> 30}")
        subprocess.run([interpreter, "-m", "venv", str(made.folder)], check=True)
        made.checkout.mkdir()
        torch, *others = wanted
        made.pip("--no-deps", torch)
        needed = json.loads(made.run("-c", _REQUIREMENTS))
        cuda = [each for each in needed if each.startswith(_CUDA)]
        made.pip(*others, *(each for each in needed if not each.startswith((*_CUDA, *_ONLY_CUDA))))
        if cuda:
            share_cuda(made, cuda, folder)
        complete.write_text(key)
    return made


def copy_checkout(made: Environment) -> None:
    """Copy the checkout into the environment's folder, in place of an earlier copy."""
    shutil.rmtree(made.checkout, ignore_errors=True)
    shutil.copytree(ROOT, made.checkout, ignore=_LEFT_OUT)


def share_cuda(made: Environment, needed: Sequence[str], folder: Path) -> None:
    """Let the environment's torch find CUDA's libraries, gigabytes, in one folder for all environments."""
    folder = folder / f"cuda-{_digest(needed)[:12]}"
    complete = folder / "complete"
    if not complete.exists():
        shutil.rmtree(folder, ignore_errors=True)
        made.pip("--target", str(folder), *needed)
        complete.touch()
    (packages,) = (made.folder / "lib").glob("python3.*/site-packages")
    (packages / "nvidia").symlink_to((folder / "nvidia").resolve())


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def smoke(made: Environment, cases: Sequence[str] = CASES) -> dict[str, float]:
    """Run the steps; return the seconds that each took."""
    steps = {
        "import": ("-c", _IMPORTS),
        "demo": ("examples/demo.py", "--dir", str(made.folder / "demo")),
        "conformance": ("-m", "pytest", "-q", "-p", "no:cacheprovider", *cases),
    }
    times = {}
    for name, words in steps.items():
        began = time.monotonic()
        printed = made.run(*words, env={"RECSYS_CONFORMANCE_ENGINE": "reference"})
        times[name] = time.monotonic() - began
        if "Warning" in printed:
            raise StackError(f"{name}: expected no warnings\n{printed[-4000:]}")
    return times


def run_stack(python: str, folder: Path, *, runs: bool = True) -> bool:
    """Install one stack, run the smoke on it, unless told not to, and print the times; return whether all is well."""
    title = f"Python {python}, torch {STACK.torch}, fbgemm-gpu-cpu {STACK.fbgemm}"
    interpreter = find_python(python)
    if interpreter is None:
        print(f"{title}: skipped, there is no python{python}", flush=True)
        return True
    try:
        with _INSTALLING:
            began = time.monotonic()
            made = install(python, interpreter, folder)
            if runs:
                copy_checkout(made)
                made.pip("--no-deps", "--no-build-isolation", "-e", ".")
            times = {"install": time.monotonic() - began}
        times |= smoke(made) if runs else {}
    except NoSpaceError as error:
        print(f"{title}: skipped, {error}", flush=True)
        return True
    except (StackError, subprocess.SubprocessError) as error:
        print(f"{title}: {error}", flush=True)
        return False
    steps = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in times.items())
    print(f"{title}: {sum(times.values()):.0f} s ({steps})", flush=True)
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Run the smoke on every stack, two at a time; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.stacks")
    parser.add_argument("--install", action="store_true", help="only make the environments")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("pythons", nargs="*", default=PYTHONS, metavar="PYTHON")
    found = parser.parse_args(argv)
    began = time.monotonic()
    with ThreadPoolExecutor(max_workers=2) as pool:
        stacks = [
            pool.submit(run_stack, python, found.folder, runs=not found.install) for python in found.pythons
        ]
        done = [stack.result() for stack in stacks]
    print(f"all stacks: {time.monotonic() - began:.0f} s", flush=True)
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
