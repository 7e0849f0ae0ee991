"""Commands in a process of their own whose disk is full: a limit on the size of files, or a small tmpfs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.support.fork_server import run_python

ROOT = Path(__file__).resolve().parents[3]
_LIMITED = """
import resource, runpy, sys
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
sys.argv.pop(0)
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
# Mounts an own tmpfs over the folder, which is gone with the process: what is left there is listed on stdout.
_MOUNTED = """
mount -t tmpfs -o "size=$1" none "$2" || exit 77
place=$2
shift 2
"$@"
code=$?
echo "left: $(ls -A "$place" | tr '\\n' ' ')"
exit "$code"
"""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What a command did.

    Attributes:
        code: its exit status.
        out: what it wrote to stdout.
        err: what it wrote to stderr.
    """

    code: int
    out: str
    err: str


def with_file_limit(num_bytes: int, module: str, *words: str | Path) -> Ended:
    """Run ``python -m module`` where no file can become larger than this many bytes."""
    done = run_python("-c", _LIMITED, str(num_bytes), module, *map(str, words))
    return Ended(code=done.returncode, out=done.stdout, err=done.stderr)


def on_small_disk(folder: Path, size: str, module: str, *words: str | Path) -> Ended:
    """Run ``python -m module`` while the folder is a tmpfs of this size; skip where none can be mounted."""
    if not _can_mount():
        pytest.skip("no tmpfs can be mounted in a user namespace here")
    inner = [sys.executable, "-m", module, *map(str, words)]
    command = ["unshare", "-rm", "sh", "-c", _MOUNTED, "sh", size, str(folder), *inner]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200)
    return Ended(code=done.returncode, out=done.stdout, err=done.stderr)


@cache
def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
