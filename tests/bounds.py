"""A smoke with the newest, or the oldest, of each dependency that a user may get.

    python -m tests.bounds newest|oldest FOLDER TORCH [INDEX]

FOLDER/newest or FOLDER/oldest is made again: an environment of this Python with the requirement TORCH, from INDEX
where that answers. ``oldest`` has the lower bound of each dependency of pyproject.toml, ``newest`` the newest that pip
finds, and the libraries whose frames are tables. Then: imports, the demo, conformance cases and tests of tables, on a
copy of the checkout. The versions are printed.

Exit status: 0 all is well, 1 something is wrong.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.stacks import CASES, ROOT, Environment, StackError, copy_checkout, smoke

TABLES = (
    "tests/recsys/data/tables/test_frames.py",
    "tests/recsys/data/tables/test_dataset.py",
    "tests/recsys/data/tables/values",
    "tests/recsys/data/tables/reading",
)
#: Libraries whose frames recsys-train takes, for ``newest``.
FRAMES = ("duckdb", "pandas", "polars")
# tritonclient without its extra, which permits no protobuf 7.
TESTS = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist", "tritonclient")
#: Chosen by the torch that is installed.
_STACK = ("torch", "fbgemm-gpu", "fbgemm-gpu-cpu")


def lower_bounds() -> Iterator[str]:
    """Yield the oldest version of each dependency that pyproject.toml permits, as a constraint."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for each in (*project["dependencies"], *extras["rest"]):
        name, bound = re.split(r">=", each, maxsplit=1)
        if name not in _STACK:
            yield f"{name}=={bound.split(',')[0]}"


def install(which: str, made: Environment, torch: str, index: str) -> None:
    """Make the environment."""
    shutil.rmtree(made.folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(made.folder)], check=True)
    copy_checkout(made)
    others = ["--extra-index-url", index] if index else []
    made.pip("--no-deps", "--timeout", "15", "--retries", "1", *others, torch)
    fbgemm = made.run("-m", "recsys.base.stack", "fbgemm").strip()
    constraints = made.folder / "constraints.txt"
    constraints.write_text("\n".join(lower_bounds()) if which == "oldest" else "")
    frames = FRAMES if which == "newest" else ()
    made.pip("-c", str(constraints), "-e", ".[rest]", fbgemm, *frames, *TESTS)


def main(which: str, folder: Path, torch: str, index: str = "") -> int:
    """Install, and run the smoke; return the exit status."""
    made = Environment(f"{sys.version_info.major}.{sys.version_info.minor}", folder / which)
    try:
        install(which, made, torch, index)
        times = smoke(made, (*CASES, *TABLES))
    except StackError as error:
        print(f"{which}: {error}", flush=True)
        return 1
    versions = made.run("-m", "pip", "list", "--format=freeze").split()
    print(f"{which}: {', '.join(versions)}")
    print(f"{which}: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in times.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
