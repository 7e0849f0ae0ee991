"""Check a wheel: its top-level names are ours and belong to it alone, and native modules run where no compiler is.

    python tests/wheel_check.py            builds a pure wheel and checks it
    python tests/wheel_check.py WHEEL      checks a wheel of ``make wheel``

Exit status: 0 all is well, 1 something is wrong.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

OURS = {"recsys", "export", "serve"}
#: Where auditwheel puts the libraries that the native modules need.
LIBRARIES = "recsys_serving.libs"
DISTRIBUTION = "recsys-serving"
#: Files that are read at run time, one of each kind; the native modules are checked apart.
DATA_FILES = (
    *(f"{name}/py.typed" for name in sorted(OURS)),
    "recsys/as_torchrec/handed_on.toml",
    "recsys/as_torchrec/names/top.toml",
)
NATIVE_MODULES = ("recsys/kernels/_ops", "serve/engine/_engine", "serve/bench/load/_sender")
#: The minor release of glibc 2 that wheels need: that of Amazon Linux 2023 and of RHEL 9.
GLIBC = 34
#: Prints where the native modules and the libraries of their wires were loaded from.
TRY_MODULES = """
import torch
import recsys.kernels._ops
import serve.engine._engine as engine
import serve.bench.load._sender
print(engine.__file__)
engine.Engine("{}").close(0)
for line in open("/proc/self/maps"):
    if any(name in line for name in ("libgrpc", "libnghttp2", "libhiredis", "_engine", "_ops.")):
        print(line.split()[-1])
"""


def build_pure(folder: Path) -> Path:
    """Build the wheel without native modules."""
    root = Path(__file__).resolve().parent.parent
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
    ]
    subprocess.run([*command, str(root)], check=True, env={**os.environ, "RECSYS_WHEEL": "pure"})
    (wheel,) = folder.glob("*-py3-none-any.whl")
    return wheel


def names_problem(wheel: Path, files: list[str]) -> str | None:
    """Return what is wrong with the names of a wheel's files."""
    names = {name.split("/", 1)[0] for name in files}
    names = {name for name in names if not name.endswith(".dist-info")}
    if names - {LIBRARIES} != OURS:
        return f"the wheel's top-level names are {sorted(names)}, expected {sorted(OURS)}"
    owners = importlib.metadata.packages_distributions()
    clashes = {name: set(owners.get(name, [])) - {DISTRIBUTION} for name in names}
    clashes = {name: others for name, others in clashes.items() if others}
    if clashes:
        return f"other distributions install the same names: {clashes}"
    modules = sorted(file for file in files if file.endswith(".so"))
    if wheel.name.endswith("-none-any.whl") and modules:
        return f"a wheel for any platform has native modules: {modules}"
    missing = sorted(set(DATA_FILES) - set(files))
    return f"the wheel lacks {missing}" if missing else None


def native_problem(wheel: Path, files: list[str]) -> str | None:
    """Return what is wrong with a wheel's native modules: they run in a new environment, with their own libraries."""
    tag = re.search(r"-manylinux_2_(\d+)_\w+\.whl$", wheel.name)
    if tag is None or int(tag[1]) > GLIBC:
        return f"expected a wheel for glibc 2.{GLIBC} or older"
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    missing = [name + suffix for name in NATIVE_MODULES if name + suffix not in files]
    if missing:
        return f"the wheel lacks {missing}"
    torch = ".".join(importlib.metadata.version("torch").split(".")[:2])
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in files if name.endswith(".dist-info/METADATA")]
        if f"Requires-Dist: torch=={torch}.*\n" not in archive.read(metadata).decode():
            return f"the wheel does not require torch {torch}, which its native modules were built for"
    with tempfile.TemporaryDirectory() as scratch:
        environment = Path(scratch, "environment")
        venv.create(environment, symlinks=True, with_pip=False)
        (packages,) = environment.glob("lib/python*/site-packages")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
        # torch and the other packages are those of this environment; the wheel's come before them.
        (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
        done = subprocess.run(
            [environment / "bin" / "python", "-I", "-c", TRY_MODULES],
            capture_output=True,
            text=True,
            cwd=scratch,
            env={"PATH": str(environment / "bin")},
        )
        if done.returncode != 0:
            return f"the native modules do not load: {done.stderr}"
        others = {line for line in done.stdout.splitlines() if not line.startswith(str(packages))}
    return f"the native modules use files outside of the wheel: {sorted(others)}" if others else None


def main() -> int:
    """Check."""
    with tempfile.TemporaryDirectory() as scratch:
        wheel = Path(sys.argv[1]) if len(sys.argv) > 1 else build_pure(Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            files = archive.namelist()
        problem = names_problem(wheel, files)
        if problem is None and not wheel.name.endswith("-none-any.whl"):
            problem = native_problem(wheel, files)
    if problem is not None:
        print(f"{wheel.name}: {problem}")
        return 1
    print(f"{wheel.name}: {len(files)} files, all is well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
