"""The destination of an artifact: it is written next to its path, and moved there when complete."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import TracebackType

from recsys.artifact.manifest_file import MANIFEST_NAME
from recsys.artifact.parts import read_manifest
from recsys.base.files import is_utf8, not_utf8, sync
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
