"""The destination of an artifact: written next to its path and moved there when complete; or uploaded to a store."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from recsys.artifact.manifest_file import MANIFEST_NAME
from recsys.artifact.parts import read_manifest
from recsys.base.files import is_utf8, not_utf8, sync
from recsys.base.remote import AddressError, RemoteFolder, RemoteNotFoundError, parse_address
from recsys.errors import ArtifactError, ExportError


class Destination:
    """A context manager for writing an artifact. Without ``commit`` it leaves no files.

    Args:
        path: The path of the artifact.
        single_file: Whether it is one file.
        overwrite: Replace an existing artifact.

    Raises:
        ExportError: The path exists, and must not be replaced or is not an artifact.
    """

    def __init__(self, path: Path, *, single_file: bool, overwrite: bool) -> None:
        self._path = path
        self._single_file = single_file
        self._overwrite = overwrite
        self._check_replaceable()
        path.parent.mkdir(parents=True, exist_ok=True)

    def _check_replaceable(self) -> None:
        name = self._path.name
        if not is_utf8(self._path):
            raise ExportError(f"out: {not_utf8(self._path)}")
        if not self._path.exists():
            return
        if not self._overwrite:
            raise ExportError(f"out: {name!r} exists; choose another name or pass --force")
        try:
            manifest = read_manifest(self._path)
        except ArtifactError:
            raise ExportError(f"out: {name!r} exists and is no artifact; it is not replaced") from None
        if self._path.is_dir():
            parts = {MANIFEST_NAME, manifest.rows_path, *(part.path for part in manifest.skeletons)}
            foreign = sorted({file.name for file in self._path.iterdir()} - parts)
            if foreign:
                raise ExportError(
                    f"out: {name!r} also holds {foreign[:5]}, which is no part of the artifact; it is not replaced"
                )

    def __enter__(self) -> Destination:
        self._scratch = Path(tempfile.mkdtemp(prefix=f".{self._path.name}.", dir=self._path.parent))
        self.work = self._scratch / "artifact"
        self.work.mkdir()
        self.file = self._scratch / "artifact.pt"
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)

    def commit(self) -> int:
        """Move the artifact to its path; return its size on disk in bytes.

        Raises:
            ExportError: The path has been created since, and must not be replaced.
        """
        made = self.file if self._single_file else self.work
        files = [made] if self._single_file else sorted(made.iterdir())
        for file in files:
            sync(file)
        if not self._single_file:
            assert (made / MANIFEST_NAME).is_file()
            sync(made)
        self._check_replaceable()
        replaced = self._scratch / "replaced"
        if self._path.exists():
            self._path.rename(replaced)
        try:
            made.rename(self._path)
        except OSError:
            if replaced.exists():
                replaced.rename(self._path)
            raise
        sync(self._path.parent)
        return sum(file.stat().st_size for file in _files(self._path))


def _files(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else [path]


class Upload:
    """A context manager for an artifact that is uploaded. Its local files are removed at the end.

    A store has no renaming. A version counts for servers once its manifest and all parts are there, so the manifest
    is the last file that is written, and the first one that is removed.

    Args:
        address: Such as ``s3://bucket/models/ranker/4``.
        single_file: Whether it is one file.
        overwrite: Replace what is there.

    Attributes:
        path: Where to write the artifact before ``put``.

    Raises:
        ExportError: The address cannot be used, or there is something, which must not be replaced.
        RemoteError: The store cannot be asked.
    """

    def __init__(self, address: str, *, single_file: bool, overwrite: bool) -> None:
        try:
            parsed = parse_address(address)
            self._folder = RemoteFolder(parsed)
        except AddressError as error:
            raise ExportError(f"out: {error}") from None
        self._single_file = single_file
        self._overwrite = overwrite
        if not overwrite and self._is_taken():
            raise ExportError(f"out: {address!r} exists; choose another name or pass --force")
        self._scratch = tempfile.TemporaryDirectory(prefix="recsys-export-")
        self.path = Path(self._scratch.name) / parsed.name

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *_: object) -> None:
        self._scratch.cleanup()

    def put(self) -> None:
        """Upload what was written to ``path``.

        Raises:
            ExportError: There is something since, which must not be replaced.
            RemoteError: The store cannot be written to.
        """
        if not self._overwrite and self._is_taken():
            raise ExportError(
                f"out: {str(self._folder.address)!r} exists; choose another name or pass --force"
            )
        if self._single_file:
            self._folder.put(self.path)
            return
        self._folder.remove(MANIFEST_NAME)
        files = sorted(self.path.iterdir(), key=lambda file: (file.name == MANIFEST_NAME, file.name))
        for file in files:
            self._folder.put(file, file.name)
        for entry in self._folder.entries():
            if not entry.is_folder and entry.name not in {file.name for file in files}:
                self._folder.remove(entry.name)

    def _is_taken(self) -> bool:
        try:
            self._folder.stat()
        except RemoteNotFoundError:
            return bool(self._folder.entries())
        return True
