"""An artifact in a single file: the graph with its rows.

torch writes such a file either out of a copy in memory, rows included, or by a writer that ends the process (SIGABRT)
where the disk is full. So large ones are written by a process of their own.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from export.graph.prepared import PreparedModel
from recsys.artifact.graphs import set_attribute
from recsys.artifact.load import load_artifact, open_artifact
from recsys.artifact.manifest import Manifest
from recsys.artifact.manifest_file import MANIFEST_NAME
from recsys.artifact.parts import ROWS_NAME, map_rows
from recsys.artifact.targets import SINGLE_FILE
from recsys.base.files import reserve
from recsys.errors import VerificationError
from recsys.rows.memory import RowsMemory
from recsys.scripting import torchscript

#: Rows of which a single file holds no more are copied in memory: it takes seconds to start a process.
MOST_COPIED_BYTES = 1 << 26


def write_single_file(prepared: PreparedModel, work: Path, manifest: Manifest, file: Path) -> None:
    """Write the graph with its rows in one file, and check it against the artifact's directory.

    Args:
        prepared: The model.
        work: The directory that holds the artifact, without its manifest.
        manifest: The manifest, to be written into the file.
        file: The file to write.

    Raises:
        OSError: The file cannot be written.
        VerificationError: The file predicts otherwise than the directory.
    """
    target = manifest.targets[0]
    own = file.with_name(MANIFEST_NAME)
    kept = {target.program, *(info.part for info in manifest.mappings)}
    single = replace(
        manifest,
        rows_path=None,
        skeletons=tuple(part for part in manifest.skeletons if part.path in kept),
        targets=(replace(target, skeleton=SINGLE_FILE),),
    )
    own.write_text(single.dumps())
    assert target.skeleton is not None
    if manifest.layout.num_bytes <= MOST_COPIED_BYTES:
        module, extra_files = _with_rows(work, target.skeleton, own)
        torchscript.save(module, file, extra_files)
    else:
        write_apart(work, target.skeleton, own, file)
    # By torch's operators: a program would be refused where it does not give the answers that were verified.
    whole = load_artifact(
        open_artifact(work, manifest, target.name),
        verify_checksums=False,
        memory=RowsMemory(random_access=True),
        scripted=True,
    )
    again = load_artifact(file, verify_checksums=False, scripted=True)
    inputs = prepared.samples.inputs()
    before, after = whole.forward(*inputs), again.forward(*inputs)
    for name, output in before.items():
        if not torch.equal(output, after[name]):
            raise VerificationError(f"output {name!r}: the single file predicts otherwise than the directory")


def write_apart(work: Path, skeleton: str, manifest: Path, file: Path) -> None:
    """Write the single file of a directory in another process.

    Args:
        work: The directory that holds the artifact.
        skeleton: The name of its graph.
        manifest: The manifest of the single file.
        file: The file to write.

    Raises:
        OSError: The file cannot be written.
        RuntimeError: The process failed otherwise.
    """
    command = [sys.executable, "-m", __name__, str(work), skeleton, str(manifest), str(file)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode < 0:
        with file.open("ab") as written:
            # Says why, if it was for want of room.
            reserve(written.fileno(), sum(part.stat().st_size for part in work.iterdir()))
        raise OSError(f"out: the process that wrote the single file was ended by signal {-done.returncode}")
    if done.returncode:
        raise RuntimeError(f"out: the single file could not be written:\n{done.stderr}")


def _with_rows(work: Path, skeleton: str, manifest: Path) -> tuple[torch.jit.ScriptModule, dict[str, bytes]]:
    """Return the graph with its rows in place, and the further files of the single file."""
    held = Manifest.loads(manifest.read_bytes())
    target = held.targets[0]
    module = torchscript.load(work / skeleton)
    rows = map_rows(work / ROWS_NAME, held.layout)
    for path in target.rows:
        set_attribute(module, path, rows)
    extra_files = {part.path: (work / part.path).read_bytes() for part in held.skeletons}
    return module, {MANIFEST_NAME: manifest.read_bytes(), **extra_files}


def main(argv: Sequence[str]) -> None:
    """Write a single file; the arguments are those of ``write_apart``."""
    work, skeleton, manifest, file = (Path(word) for word in argv)
    _, limit = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, limit))
    module, extra_files = _with_rows(work, skeleton.name, manifest)
    torchscript.save_uncopied(module, file, extra_files)


if __name__ == "__main__":
    main(sys.argv[1:])
