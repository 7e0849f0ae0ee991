"""Prints what CMake is told of the installed torch and fbgemm_gpu wheels; imports neither."""

from importlib.util import find_spec
from pathlib import Path


def folder_of(package: str) -> Path:
    """Where an installed package lies."""
    found = find_spec(package)
    if found is None or found.origin is None:
        raise SystemExit(f"{package} is not installed; make setup installs it")
    return Path(found.origin).parent


if __name__ == "__main__":
    print(f"-DCMAKE_PREFIX_PATH={folder_of('torch') / 'share' / 'cmake'}")
    print(f"-DRECSYS_FBGEMM_PATH={folder_of('fbgemm_gpu')}")
