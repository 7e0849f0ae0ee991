"""The parts of an artifact on the disk: its manifest, graphs and rows, found and checked.

Artifacts are not trusted: sizes are always checked, and so are the digests of all parts but the rows.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from torch import Tensor

from recsys.artifact.manifest import Manifest, Part
from recsys.artifact.manifest_file import ZIP_ERRORS, extra_file, read_manifest_bytes
from recsys.artifact.mappings import LoadedMapping, loaded_mapping
from recsys.artifact.targets import Target
from recsys.errors import (
    ChecksumError,
    ManifestError,
    MissingPartError,
    PartSizeError,
)
from recsys.rows.file import RowsFile
from recsys.rows.layout import BlobLayout
from recsys.rows.memory import RowsMemory

ROWS_NAME = "rows.bin"
_CHUNK_BYTES = 1 << 24


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Return the manifest of a directory or a single file, without loading the model.

    Raises:
        ArtifactError: It cannot be used; the subclass says why.
    """
    return Manifest.loads(read_manifest_bytes(path))


def check_sizes(sizes: Mapping[str, int], manifest: Manifest) -> None:
    """Check that every part of a directory exists and has the manifest's size, without reading it.

    Args:
        sizes: The size in bytes of each file of the artifact, by name.
        manifest: Its manifest; a single file has no parts to check.

    Raises:
        MissingPartError: A part does not exist.
        PartSizeError: A part has another size.
    """
    if manifest.rows_path is None:
        return
    for name, num_bytes in part_sizes(manifest).items():
        if name not in sizes:
            raise MissingPartError(f"part {name!r}: missing")
        if sizes[name] != num_bytes:
            raise PartSizeError(f"part {name!r}: got {sizes[name]} bytes, expected {num_bytes}")


def part_sizes(manifest: Manifest) -> dict[str, int]:
    """Return the size in bytes of each part of a directory, by name; the rows' is the last."""
    sizes = {part.path: part.size_bytes for part in manifest.skeletons}
    if manifest.rows_path is not None:
        sizes[manifest.rows_path] = manifest.layout.num_bytes
    return sizes


def check_part(path: Path, manifest: Manifest, name: str) -> None:
    """Check the size and the digests of one part, wherever its file lies.

    Args:
        path: The file.
        manifest: The artifact's manifest.
        name: The part's name in the manifest.

    Raises:
        ArtifactError: It is missing or damaged; the subclass says which.
    """
    if name == manifest.rows_path:
        _check_size(path, manifest.layout.num_bytes, name)
        if manifest.layout.num_bytes:
            check_rows(manifest, map_rows(path, manifest.layout))
        return
    part = _part(manifest, name)
    _check_size(path, part.size_bytes, name)
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != part.sha256:
            raise _changed(f"part {name!r}")


def checked_part(where: Path, manifest: Manifest, name: str) -> BinaryIO:
    """Open a part with a graph.

    Raises:
        ArtifactError: It is missing or damaged; the subclass says which.
    """
    part = _part(manifest, name)
    path = where / part.path
    _check_size(path, part.size_bytes)
    with ExitStack() as opened:
        file = opened.enter_context(path.open("rb"))
        # Always checked: it is small, and a damaged graph can crash the process, while damaged rows only give
        # wrong numbers.
        if hashlib.file_digest(file, "sha256").hexdigest() != part.sha256:
            raise _changed(f"part {part.path!r}")
        file.seek(0)
        opened.pop_all()
    return file


def check_scripts(where: Path, manifest: Manifest, target: Target, *, verify_checksums: bool) -> None:
    """Check the TorchScript of a target whose program runs: damage is reported before it is needed.

    Args:
        where: The artifact; a single file has no parts to check.
        manifest: Its manifest.
        target: The target.
        verify_checksums: Compare digests too, and not only sizes.

    Raises:
        ArtifactError: A part is missing or damaged; the subclass says which.
    """
    for graph in target.graphs if where.is_dir() else ():
        if graph.skeleton is None:
            continue
        if verify_checksums:
            checked_part(where, manifest, graph.skeleton).close()
        else:
            _check_size(where / graph.skeleton, _part(manifest, graph.skeleton).size_bytes)


def part_bytes(where: Path, manifest: Manifest, name: str) -> bytes:
    """Return the bytes of a part of a directory or a single file.

    Raises:
        ArtifactError: It is missing or damaged; the subclass says which.
    """
    part = _part(manifest, name)
    if where.is_dir():
        _check_size(where / name, part.size_bytes)
        data: bytes | None = (where / name).read_bytes()
    else:
        data = extra_file(where, name)
    if data is None:
        raise MissingPartError(f"part {name!r}: missing")
    if hashlib.sha256(data).hexdigest() != part.sha256:
        raise _changed(f"part {name!r}")
    return data


def load_mappings(where: Path, manifest: Manifest) -> list[LoadedMapping]:
    """Return the mappings of a directory or a single file, in memory of their own.

    Raises:
        ArtifactError: They cannot be used; the subclass says why.
    """
    return [loaded_mapping(info, part_bytes(where, manifest, info.part)) for info in manifest.mappings]


def open_rows(where: Path, manifest: Manifest, memory: RowsMemory) -> tuple[Tensor, RowsFile | None]:
    """Return the rows of a directory, not yet verified, and the file that they are read from in place.

    Raises:
        ArtifactError: They are missing, or of another size; the subclass says which.
    """
    if manifest.rows_path is None:
        raise ManifestError("manifest.rows.path: got null in a directory, expected the rows' file name")
    rows = where / manifest.rows_path
    num_bytes = manifest.layout.num_bytes
    _check_size(rows, num_bytes)
    file = rows_file(where, manifest)
    blob = file.held(num_bytes, memory)
    return blob, None if memory.copy_rows else file


def rows_file(where: Path, manifest: Manifest) -> RowsFile:
    """Open the rows file of a directory, with the digests of its blocks.

    Raises:
        OSError: It cannot be opened.
    """
    assert manifest.rows_path is not None
    blocks = zip(manifest.layout.blocks, manifest.block_sha256, strict=True)
    digests = {(block.offset_bytes, block.offset_bytes + block.num_bytes): digest for block, digest in blocks}
    return RowsFile(where / manifest.rows_path, digests)


def map_rows(path: Path, layout: BlobLayout, *, random_access: bool = False) -> Tensor:
    """Map a rows file, which must be at least as long as its layout.

    Args:
        path: The file.
        layout: Its layout.
        random_access: Set if few rows will be read, to keep the others out of memory.
    """
    return RowsFile(path).held(layout.num_bytes, RowsMemory(random_access=random_access))


def check_rows(manifest: Manifest, blob: Tensor) -> None:
    """Compare every block's digest.

    Args:
        manifest: Names the blocks and their digests.
        blob: ``[size of the rows]`` uint8 in host memory.

    Raises:
        ChecksumError: Names the table.
    """
    data = blob.numpy().data
    for block, expected in zip(manifest.layout.blocks, manifest.block_sha256, strict=True):
        digest = hashlib.sha256()
        end = block.offset_bytes + block.num_bytes
        for start in range(block.offset_bytes, end, _CHUNK_BYTES):
            digest.update(data[start : min(start + _CHUNK_BYTES, end)])
        if digest.hexdigest() != expected:
            raise ChecksumError(
                f"rows of table {block.table!r}: the checksum does not match; they were changed"
            )


def damaged_member(path: Path, unread_bytes: int | None) -> str | None:
    """Return the first damaged member of a zip file; members of ``unread_bytes`` are not read."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if archive.getinfo(name).file_size == unread_bytes:
                continue
            try:
                with archive.open(name) as member:
                    while member.read(_CHUNK_BYTES):
                        pass
            except ZIP_ERRORS:
                return name
    return None


def _part(manifest: Manifest, name: str) -> Part:
    return next(part for part in manifest.skeletons if part.path == name)


def _check_size(path: Path, size_bytes: int, name: str = "") -> None:
    name = name or path.name
    if not path.is_file():
        raise MissingPartError(f"part {name!r}: missing")
    found = path.stat().st_size
    if found != size_bytes:
        raise PartSizeError(f"part {name!r}: got {found} bytes, expected {size_bytes}")


def _changed(what: str) -> ChecksumError:
    return ChecksumError(f"{what}: its checksum does not match; it was changed or damaged")
