"""Runs a script or a module with the hook installed, in this process and in those that it starts."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from recsys.as_torchrec import spawned
from recsys.as_torchrec.hook import install

#: Python's variable for folders that come before the installed packages.
_PYTHONPATH = "PYTHONPATH"


def run_script(script: Path, args: Sequence[str]) -> None:
    """Run a script as ``python script args`` does.

    Args:
        script: Its file.
        args: What it finds in ``sys.argv[1:]``.
    """
    _prepare()
    sys.path.insert(1, str(script.resolve().parent))
    sys.argv = [str(script), *args]
    runpy.run_path(str(script), run_name="__main__")


def run_module(module: str, args: Sequence[str]) -> None:
    """Run a module as ``python -m module args`` does.

    Args:
        module: Its name.
        args: What it finds in ``sys.argv[1:]``.
    """
    _prepare()
    sys.path.insert(1, str(Path.cwd()))
    sys.argv = [module, *args]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _prepare() -> None:
    """Install the hook here, and for later processes the folder whose ``torchrec`` installs it.

    ``python -m recsys.as_torchrec`` has put the current folder first: it goes, as for a script, unless this package
    itself lies there.
    """
    install()
    (folder,) = spawned.__path__
    root = str(Path(__file__).resolve().parents[2])
    here = sys.path[:1] if sys.path[:1] == [str(Path.cwd())] else []
    paths = sys.path[len(here) :]
    own = [root] if here == [root] and root not in paths else []
    sys.path[:] = [folder, *paths, *own]
    before = [path for path in os.environ.get(_PYTHONPATH, "").split(os.pathsep) if path]
    os.environ[_PYTHONPATH] = os.pathsep.join([folder, *(path for path in before if path != folder), *own])
