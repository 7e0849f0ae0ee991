"""A folder of Parquet files that only their owner can read, because requests are personal data.

A file is written under a hidden name that ends in ``.partial`` and gets its own when it is whole and on the disk, so
readers of ``*.parquet`` never see a part of one. A server that is killed leaves its partial files; the next one that
writes to the folder deletes those that no process holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from recsys.inputs.answer_columns import AnswerLayout
from serve.config.settings import AnswerLogConfig
from serve.observe.answers.parquet.file import ParquetFile, write_parts
from serve.observe.answers.table import UNIQUE, SentKinds

_log = logging.getLogger("serve.answers")
_PARTIAL = ".partial"
_ENDING = ".parquet"
# A group of rows is written at once: larger ones compress better and wait longer in memory.
_GROUP_ROWS = 1 << 16
_GROUP_BYTES = 16 << 20
_MAX_NAME_CHARS = 60


class _File:
    """One file that grows."""

    def __init__(self, folder: Path, model: str, version: str, layout: AnswerLayout) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        names = "-".join(quote(name, safe="")[:_MAX_NAME_CHARS] for name in (model, version) if name)
        self.path = folder / f"{stamp}-{names}-{uuid.uuid4().hex[:12]}{_ENDING}"
        self.layout = layout
        self.kinds = SentKinds()
        self.began_s = time.monotonic()
        self.num_requests = 0
        self._partial = folder / f".{self.path.name}{_PARTIAL}"
        # Held until the file is whole: says that its process lives.
        self._descriptor = os.open(self._partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            self._file = ParquetFile(partial(write_parts, self._descriptor), layout.schema(), UNIQUE)
        except BaseException:
            self.discard()
            raise

    @property
    def num_bytes(self) -> int:
        """Bytes on the disk and those that wait."""
        return self._file.num_bytes

    def write(self, batch: pa.RecordBatch, num_requests: int) -> None:
        self._file.add(batch)
        self.num_requests += num_requests
        if self._file.num_waiting_rows >= _GROUP_ROWS or self._file.waiting_bytes >= _GROUP_BYTES:
            self._file.end_group()

    def finish(self) -> None:
        """Write all and give the file its name."""
        self._file.close(self.kinds.completed(self.layout).metadata())
        os.fsync(self._descriptor)
        self._partial.rename(self.path)
        os.close(self._descriptor)

    def discard(self) -> None:
        """Delete the file."""
        with contextlib.suppress(OSError):
            self._partial.unlink()
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


class Folder:
    """Files by model and version, which end at a size or an age. Belongs to one thread.

    Args:
        config: the folder and its bounds.
        count: called with requests and their outcome: ``written`` once their file is whole, or ``write_failed``.

    Raises:
        OSError: the folder cannot be made or written to.
    """

    def __init__(self, config: AnswerLogConfig, count: Callable[[str, int], None]) -> None:
        self._config, self._count = config, count
        self._path = Path(config.destination)
        self._files: dict[tuple[str, str], _File] = {}
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(self._path, os.W_OK | os.X_OK):
            raise PermissionError(f"answer_log: {self._path} cannot be written to")
        self._delete_abandoned()

    def kinds(self, model: str, version: str, layout: AnswerLayout) -> SentKinds:
        """Return what collects how requests gave their inputs to the next file of a version.

        Raises:
            OSError: the file cannot be made.
        """
        return self._file(model, version, layout).kinds

    def write(self, model: str, version: str, batch: pa.RecordBatch, num_requests: int) -> None:
        """Add rows to the file that ``kinds`` opened; a failure discards it."""
        file = self._files[model, version]
        try:
            file.write(batch, num_requests)
        except BaseException:
            self._discard(model, version)
            raise
        if file.num_bytes >= self._config.max_file_bytes:
            self._finish(model, version)

    def tick(self) -> None:
        """Finish files that are old enough.

        Raises:
            OSError: one could not be written; it is discarded.
        """
        now_s = time.monotonic()
        for model, version in [
            key for key, file in self._files.items() if now_s - file.began_s >= self._config.max_file_age_s
        ]:
            self._finish(model, version)

    def close(self) -> None:
        """Finish all files; raises as ``tick``."""
        errors = []
        for model, version in [*self._files]:
            try:
                self._finish(model, version)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _file(self, model: str, version: str, layout: AnswerLayout) -> _File:
        file = self._files.get((model, version))
        if file is not None and file.layout != layout:  # the same version, loaded again with other inputs
            self._finish(model, version)
            file = None
        if file is None:
            file = self._files[model, version] = _File(self._path, model, version, layout)
        return file

    def _finish(self, model: str, version: str) -> None:
        file = self._files[model, version]
        if not file.num_requests:  # nothing could be made of what it was opened for
            self._discard(model, version)
            return
        try:
            file.finish()
        except BaseException:
            self._discard(model, version)
            raise
        del self._files[model, version]
        self._count("written", file.num_requests)
        self._delete_oldest()

    def _discard(self, model: str, version: str) -> None:
        file = self._files.pop((model, version))
        self._count("write_failed", file.num_requests)
        file.discard()

    def _delete_oldest(self) -> None:
        if not self._config.max_files:
            return
        names = sorted(path.name for path in self._path.glob(f"*{_ENDING}") if not path.name.startswith("."))
        for name in names[: -self._config.max_files]:
            with contextlib.suppress(OSError):
                (self._path / name).unlink()

    def _delete_abandoned(self) -> None:
        for path in self._path.glob(f".*{_ENDING}{_PARTIAL}"):
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                    _log.warning("answer log: deleted %s, which a server that was killed has left", path.name)
                finally:
                    os.close(descriptor)
