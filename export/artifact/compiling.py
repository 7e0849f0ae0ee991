"""Compiled graphs: an ExportedProgram, and the package that AOTInductor makes of it."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.fx.experimental._config
from torch.export import ExportedProgram

from recsys.artifact.compiled import ISAS, lacking_features
from recsys.artifact.manifest import Manifest
from recsys.artifact.parts import checked_part
from recsys.artifact.targets import Target
from recsys.errors import ExportError, ManifestError

_shape_config: Any = torch.fx.experimental._config
#: Compiled for, unless another one is named: processors of the last ten years have it.
DEFAULT_ISA = "x86-64-v3"
_VECTOR_BITS = {"x86-64-v3": 256, "x86-64-v4": 512}


def check_compiler(isa: str) -> None:
    """Check that graphs can be compiled, and run, on this machine.

    Raises:
        ExportError: They cannot; the message says what to do.
    """
    if isa not in ISAS:
        raise ExportError(f"pt2_isa: got {isa!r}, expected one of {', '.join(ISAS)}")
    lacking = lacking_features(isa)
    if lacking:
        raise ExportError(
            f"pt2_isa: got {isa!r}, but this processor lacks {', '.join(lacking)}: the package could not be verified "
            "here; name another one, or export on another machine"
        )
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise ExportError(
            f"format: compiled graphs need the compiler {compiler!r}, which is not there: install g++ (Debian: "
            "apt-get install g++), or export with --format torchscript"
        )


def compile_program(exported: ExportedProgram, isa: str, file: Path) -> None:
    """Compile a program for the CPU.

    Args:
        exported: The program.
        isa: The instructions to use, one of ``ISAS``.
        file: The package to write.

    Raises:
        ExportError: It does not compile.
    """
    settings = {
        # Otherwise small tensors become numbers in the code, where deltas do not reach them.
        "always_keep_tensor_constants": True,
        "aot_inductor.check_lowerbound": False,
        # In torch integers wrap; in C++ compilers assume that they do not, and hashes of raw IDs then match nothing.
        # There is no setting for further flags, and this one is put into the command as it stands.
        "cpp.march": f"{isa} -fwrapv",
        "cpp.simdlen": _VECTOR_BITS[isa],
        # Otherwise the number of this machine's processors is compiled in. Batches run beside each other.
        "cpp.threads": 1,
    }
    try:
        with _quiet(), _shape_config.patch(backed_size_oblivious=True), torch.no_grad():
            torch._inductor.aoti_compile_and_package(
                exported, package_path=str(file), inductor_configs=settings
            )
    except (
        RuntimeError,
        ValueError,
        AssertionError,
        NotImplementedError,
        subprocess.CalledProcessError,
    ) as error:
        raise ExportError(
            f"model: AOTInductor cannot compile it: {type(error).__name__}: {str(error).strip()[:2000]}; export it "
            "with --format torchscript"
        ) from error


def save_program(exported: ExportedProgram, file: Path) -> None:
    """Write a program for ``torch.export.load``, without the inputs that it was traced with.

    Raises:
        OSError: The file cannot be written.
    """
    examples = exported._example_inputs
    # The last of them has the size of the rows.
    exported._example_inputs = None
    try:
        with _quiet(), file.open("wb") as opened:
            torch.export.save(exported, opened)
    finally:
        exported._example_inputs = examples


def load_programs(artifact: Path, manifest: Manifest, target: Target) -> list[ExportedProgram]:
    """Return the programs of a target: the plain form, and the ranking form if there is one.

    Raises:
        ArtifactError: They cannot be used; the subclass says why.
    """
    programs = []
    for graph in target.graphs:
        assert graph.compiled is not None
        with checked_part(artifact, manifest, graph.compiled.exported) as file:
            programs.append(load_program(Path(file.name)))
    return programs


def load_program(file: Path) -> ExportedProgram:
    """Return a program that ``save_program`` wrote.

    Raises:
        ManifestError: It cannot be read.
    """
    try:
        with _quiet():
            return torch.export.load(file)
    except (RuntimeError, ValueError, AssertionError, OSError, zipfile.BadZipFile) as error:
        raise ManifestError(
            f"part {file.name!r}: not readable as an ExportedProgram ({type(error).__name__})"
        ) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch's own deprecations and remarks from users."""
    remarks = logging.getLogger("torch._export.serde.serialize")
    level = remarks.level
    remarks.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning)
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            yield
    finally:
        remarks.setLevel(level)
