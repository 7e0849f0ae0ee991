"""An artifact whose destination is an object store: written to this machine, then uploaded, its manifest last."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType

from recsys.artifact.manifest_file import MANIFEST_NAME
from recsys.base.remote import AddressError, RemoteFolder, RemoteNotFoundError, parse_address
from recsys.errors import ExportError


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
