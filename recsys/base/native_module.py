"""Native modules of the package, which ``make native`` builds for the installed torch and fbgemm_gpu."""

from __future__ import annotations

import importlib
import json
import mmap
import os
import re
import sysconfig
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from recsys.base.machine import package_version

_BUILD = re.compile(rb"recsys-native-build (\{[^\0}]*\})")
_FIX = "`make native` in the project's source builds it"
# Environment variable with the folder of fbgemm_gpu's libraries, which native modules read.
_FBGEMM_PATH = "RECSYS_FBGEMM_PATH"


class NotBuiltError(RuntimeError):
    """A native module is missing or does not fit; the message says why and what to do."""


def load_native(name: str, folder: Path, what: str) -> Any:
    """Import a native module if it was built for the installed packages; with others, loading it could crash.

    Args:
        name: The module's full name.
        folder: The folder that holds it.
        what: What it is, for messages, such as "the native engine".

    Raises:
        NotBuiltError: It is not built, or built for another torch or fbgemm_gpu.
    """
    file = folder / f"{name.rpartition('.')[2]}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not file.is_file():
        raise NotBuiltError(f"{what} is not built; {_FIX}")
    _check_build(_build_of(file), what)
    fbgemm = find_spec("fbgemm_gpu")
    if fbgemm is not None and fbgemm.origin is not None:
        os.environ.setdefault(_FBGEMM_PATH, str(Path(fbgemm.origin).parent))
    try:
        importlib.import_module("torch")  # loads the libraries that the module links
        return importlib.import_module(name)
    except ImportError as error:
        raise NotBuiltError(f"{what} cannot be loaded ({error}); {_FIX} again") from None


def _build_of(file: Path) -> Mapping[str, str]:
    """Return the package versions that a module was built with, read from its file."""
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = _BUILD.search(data)
            build = json.loads(found[1]) if found else {}
    except ValueError:  # empty file or damaged text
        build = {}
    return {package: str(version) for package, version in build.items()}


def _check_build(build: Mapping[str, str], what: str) -> None:
    installed = {
        "torch": package_version("torch"),
        "fbgemm_gpu": package_version("fbgemm-gpu-cpu") or package_version("fbgemm-gpu"),
    }
    for package, version in installed.items():
        built = build.get(package, "")
        if _minor(version or "") != _minor(built):
            raise NotBuiltError(
                f"{what} was built for {package} {built or 'of an unknown version'}, and "
                f"{version or 'none'} is installed; {_FIX} again"
            )


def _minor(version: str) -> str:
    """Return the major and minor number: the binary interface changes with them."""
    return ".".join(version.split(".")[:2])
