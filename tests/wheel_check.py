"""Builds the wheel and checks that its top-level names are ours and belong to it alone.

Run by ``make wheel-check``. Exit status: 0 all well, 1 a name clashes or is not ours.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

OURS = {"recsys", "export", "serve"}
DISTRIBUTION = "recsys-serving"


def top_level_names(wheel: Path) -> set[str]:
    """Names that the wheel puts beside other packages."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name.split("/", 1)[0] for name in archive.namelist()}
    return {name for name in names if not name.endswith(".dist-info")}


def main() -> int:
    """Check."""
    root = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            scratch,
        ]
        subprocess.run([*command, str(root)], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        names = top_level_names(wheel)
        with zipfile.ZipFile(wheel) as archive:
            files = archive.namelist()
    if names != OURS:
        print(f"the wheel's top-level names are {sorted(names)}, expected {sorted(OURS)}")
        return 1
    owners = importlib.metadata.packages_distributions()
    clashes = {name: set(owners.get(name, [])) - {DISTRIBUTION} for name in OURS}
    clashes = {name: others for name, others in clashes.items() if others}
    if clashes:
        print(f"other distributions install the same names: {clashes}")
        return 1
    stdlib = sorted(
        file
        for file in files
        if file.endswith(".py")
        and Path(file).stem in sys.stdlib_module_names
        and Path(file).stem != "__main__"
    )
    if [file for file in stdlib if Path(file).name != "__init__.py"]:
        print(f"files named like modules of the standard library: {stdlib}")
        return 1
    missing = sorted(f"{name}/py.typed" for name in OURS if f"{name}/py.typed" not in files)
    if missing:
        print(f"the wheel lacks {missing}")
        return 1
    print(f"{wheel.name}: {len(files)} files under {sorted(names)}, which belong to it alone")
    return 0


if __name__ == "__main__":
    sys.exit(main())
