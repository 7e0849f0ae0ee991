"""``recsys-serve --native``: the native server in this process's place, with the same arguments."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

#: The flag of recsys-serve.
FLAG = "--native"
#: The environment's way to say where the native server is.
ENVIRONMENT = "RECSYS_SERVER"
PROGRAM = "recsys-server"
_ROOT = Path(__file__).resolve().parent.parent
# Where `make native` puts it.
_BUILT = _ROOT / "build" / "native" / PROGRAM


def find_server() -> Path | None:
    """The native server: what the environment names, or beside Python, on the PATH, or built in a source checkout.

    None where there is none. What the environment names is it, whether it is there or not.
    """
    named = os.environ.get(ENVIRONMENT)
    if named:
        return Path(named)
    on_path = shutil.which(PROGRAM)
    places = [Path(sys.executable).parent / PROGRAM, *([Path(on_path)] if on_path else [])]
    if (_ROOT / "cpp_client").is_dir():
        places.append(_BUILT)
    return next((path for path in places if path.is_file() and os.access(path, os.X_OK)), None)


def run_native(arguments: Sequence[str]) -> int:
    """Replace this process by the native server.

    Returns:
        The exit code where that cannot be; otherwise it does not return.
    """
    path = find_server()
    if path is None:
        print(
            f"recsys-serve: {FLAG}: found no {PROGRAM} beside {sys.executable} and none on the PATH; build it with "
            f"`make native` in the project's source, or name it in {ENVIRONMENT}",
            file=sys.stderr,
        )
        return 2
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execv(path, [str(path), *arguments])
    except OSError as error:
        print(
            f"recsys-serve: {FLAG}: cannot run {str(path)!r}: {error.strerror}; `make native` in the project's source "
            "builds it",
            file=sys.stderr,
        )
    return 2
