"""Which releases of torch, fbgemm-gpu and torchrec fit each other, and what to do where the installed ones do not.

``python -m recsys.base.stack fbgemm`` and ``... torchrec`` print what pip has to install beside the installed
torch. Torch is not imported here.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from recsys.base.machine import install_command, package_version, package_versions
from recsys.errors import UnusablePackageError

_LOG = logging.getLogger(__name__)
#: The two builds of FBGEMM: one import name, ``fbgemm_gpu``.
FBGEMM_PACKAGES = ("fbgemm-gpu-cpu", "fbgemm-gpu")


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Releases that fit each other, by FBGEMM's table of releases.

    Attributes:
        torch: The minor release of torch.
        fbgemm: The release of fbgemm-gpu and fbgemm-gpu-cpu.
        torchrec: The release of torchrec that tests compare with; None where they compare with none.
    """

    torch: str
    fbgemm: str
    torchrec: str | None = None


#: Those that are known, the newest last.
STACKS = (
    Stack(torch="2.11", fbgemm="1.6.0"),
    Stack(torch="2.12", fbgemm="1.7.0"),
    Stack(torch="2.13", fbgemm="1.8.0", torchrec="1.8.0"),
    Stack(torch="2.14", fbgemm="1.9.0", torchrec="1.9.2"),
)


def stack_of(torch: str) -> Stack | None:
    """Return the stack of a version of torch such as ``2.13.0+cpu``; None if none is known."""
    return next((stack for stack in STACKS if stack.torch == _minor(torch)), None)


def check_stack() -> None:
    """Check that the installed torch and fbgemm-gpu fit each other; log one line for a pair that is not known.

    Nothing is checked where pip did not install one of them.

    Raises:
        UnusablePackageError: One of them is known to fit another release of the other. Such a pair fails to load, or
            crashes later.
    """
    torch = package_version("torch")
    builds = package_versions(FBGEMM_PACKAGES)
    if torch is None or not builds:
        return
    found = f"torch {torch} with " + " and ".join(f"{name} {number}" for name, number in builds.items())
    stack = stack_of(torch)
    if stack is not None:
        if all(_minor(number) != _minor(stack.fbgemm) for number in builds.values()):
            raise _misfit(f"fbgemm-gpu does not fit torch: got {found}: {_install_fbgemm()}")
        return
    for known in STACKS:
        if any(_minor(number) == _minor(known.fbgemm) for number in builds.values()):
            raise _misfit(f"torch does not fit fbgemm-gpu: got {found}: pip install 'torch=={known.torch}.*'")
    known_pairs = ", ".join(f"{known.torch} with {_minor(known.fbgemm)}" for known in STACKS)
    _LOG.warning("%s is an unknown pair: known are torch and fbgemm-gpu %s", found, known_pairs)


@contextmanager
def without_fbgemm_remarks() -> Iterator[None]:
    """Hide what FBGEMM logs on versions, over several lines for each of its libraries: ``check_stack`` has said it."""

    def is_other(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        return "_fbgemm_torch_compat_table" not in text and "FBGEMM_GPU version is" not in text

    root = logging.getLogger()
    root.addFilter(is_other)
    try:
        yield
    finally:
        root.removeFilter(is_other)


def unusable_package(error: ImportError | OSError) -> UnusablePackageError | None:
    """Return a clear error for one that importing torch or fbgemm-gpu has raised; None for other errors."""
    if isinstance(error, UnusablePackageError):
        return error
    name = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and name == "torch":
        return UnusablePackageError(f"torch is not installed: {install_command(package='torch')}", name=name)
    if isinstance(error, ModuleNotFoundError) and name == "fbgemm_gpu":
        return _misfit(f"fbgemm-gpu is not installed: {_install_fbgemm()}")
    if "fbgemm_gpu" not in str(error):
        return None
    builds = package_versions((*FBGEMM_PACKAGES, "torch"))
    found = " with ".join(f"{package} {number}" for package, number in builds.items())
    reason = str(error).rpartition("/")[2]
    return _misfit(
        f"fbgemm-gpu cannot be loaded, it does not fit: got {found} ({reason}): {_install_fbgemm()}"
    )


def _minor(version: str) -> str:
    """Return the minor release of a version: ``2.13`` of ``2.13.0+cpu``."""
    return ".".join(version.split(".")[:2])


def _misfit(text: str) -> UnusablePackageError:
    return UnusablePackageError(text, name="fbgemm_gpu")


def _install_fbgemm() -> str:
    stack = stack_of(package_version("torch") or "")
    if stack is None:
        return f"{install_command(package='torch')}, then {install_command(extra='cpu')}"
    return f"pip install fbgemm-gpu-cpu=={stack.fbgemm} or, for CUDA, fbgemm-gpu=={stack.fbgemm}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the requirement that fits the installed torch; return 0, or 2 where none is known."""
    parser = argparse.ArgumentParser(prog="python -m recsys.base.stack", description=__doc__)
    parser.add_argument("package", choices=("fbgemm", "torchrec"))
    package = parser.parse_args(argv).package
    torch = package_version("torch") or "none"
    stack = stack_of(torch)
    release = stack and (stack.fbgemm if package == "fbgemm" else stack.torchrec)
    if release is None:
        known = [each.torch for each in STACKS if package == "fbgemm" or each.torchrec]
        print(
            f"torch: got {torch}, expected {', '.join(known)}: no {package} is known to fit", file=sys.stderr
        )
        return 2
    print(f"{'fbgemm-gpu-cpu' if package == 'fbgemm' else package}=={release}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
