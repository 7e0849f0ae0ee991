"""Object stores by address: ``s3://bucket/models``, ``gs://``, ``az://`` and, for one process, ``memory://``.

A store is opened by fsspec and the package of an extra. Credentials and endpoints come from where the store's own tools
find them, such as ``AWS_ACCESS_KEY_ID`` and ``AWS_ENDPOINT_URL``; an address never holds them. Every failure is a
``RemoteError``, which is an ``OSError``, so that what reads folders handles stores alike.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from recsys.base.machine import install_command

# Seconds that a store may take to answer, or for one block of bytes, before the request is tried again or fails.
TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 5.0
# Tries of one request, the first included.
_NUM_TRIES = 3
# A file is fetched in blocks of this size, several at a time: one connection of S3 carries about 90 MB/s.
_BLOCK_BYTES = 8 << 20
_NUM_BLOCKS_AT_A_TIME = 8
_MAX_REASON = 300
_PART = re.compile(r"[^\x00-\x1f\x7f/\\?#@*\[\]]+")


@dataclass(frozen=True)
class _Protocol:
    """How to open a kind of store.

    Attributes:
        package: the module that fsspec opens it with.
        extra: the extra that installs the module.
        credentials: what to do where credentials fail.
    """

    package: str
    extra: str
    credentials: str


_PROTOCOLS = {
    "s3": _Protocol(
        "s3fs",
        "s3",
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the role of this machine or pod",
    ),
    "gs": _Protocol(
        "gcsfs",
        "gcs",
        "set GOOGLE_APPLICATION_CREDENTIALS, or the service account of this machine or pod",
    ),
    "az": _Protocol(
        "adlfs",
        "azure",
        "set AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or a managed identity",
    ),
    "memory": _Protocol("fsspec", "", ""),
}


class AddressError(ValueError):
    """An address cannot be read, or this process cannot open its kind of store."""


class RemoteError(OSError):
    """A store did not do what it was asked; ``strerror`` says which address, why, and what to do."""

    def __init__(self, text: str, number: int = errno.EIO) -> None:
        super().__init__(number, text)

    def __str__(self) -> str:
        return str(self.strerror)


class RemoteNotFoundError(RemoteError):
    """A file, or the bucket, does not exist."""

    def __init__(self, text: str) -> None:
        super().__init__(text, errno.ENOENT)


class RemoteBucketNotFoundError(RemoteNotFoundError):
    """The bucket does not exist."""


class RemoteAccessError(RemoteError):
    """The store refuses the credentials, or there are none."""

    def __init__(self, text: str) -> None:
        super().__init__(text, errno.EACCES)


class RemoteTimeoutError(RemoteError):
    """The store did not answer in time, or cannot be reached."""

    def __init__(self, text: str) -> None:
        super().__init__(text, errno.ETIMEDOUT)


class RemoteChangedError(RemoteError):
    """A file was replaced while it was read."""

    def __init__(self, text: str) -> None:
        super().__init__(text, errno.ESTALE)


@dataclass(frozen=True)
class RemoteAddress:
    """The address of a file, or of a folder of files, in a store.

    Attributes:
        protocol: such as ``s3``.
        path: the bucket and the names below it, separated by slashes.
    """

    protocol: str
    path: str

    def __str__(self) -> str:
        return f"{self.protocol}://{self.path}"

    def __truediv__(self, name: str) -> RemoteAddress:
        return parse_address(f"{self}/{name}")

    @property
    def name(self) -> str:
        """The last name."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> RemoteAddress:
        """The folder that this lies in; a bucket is its own parent."""
        return RemoteAddress(self.protocol, self.path.rpartition("/")[0] or self.path)

    def with_name(self, name: str) -> RemoteAddress:
        """Return the address of another file in the same folder."""
        return self.parent / name


@dataclass(frozen=True)
class RemoteEntry:
    """A file, or a folder, of a store.

    Attributes:
        name: its name in the folder that was listed.
        num_bytes: its size; 0 for a folder.
        tag: changes when the file is replaced; empty for a folder.
        is_folder: whether there are files below the name.
        modified_s: when it was written, in seconds since the epoch; 0 for a folder, or if the store does not say it.
    """

    name: str
    num_bytes: int
    tag: str
    is_folder: bool
    modified_s: float = field(default=0.0, compare=False)


def is_address(text: str | os.PathLike[str]) -> bool:
    """Return whether a text is meant as an address and not as a path."""
    return isinstance(text, str) and "://" in text


def parse_address(text: str) -> RemoteAddress:
    """Return the address that a text names. No package is imported and no store is asked.

    Raises:
        AddressError: The text is not an address of a kind of store that there is.
    """
    protocol, found, path = text.partition("://")
    if not found or protocol not in _PROTOCOLS:
        kinds = ", ".join(f"{name}://" for name in _PROTOCOLS)
        raise AddressError(
            f"got {text[:200]!r}, expected an address that begins with one of {kinds}, or a path"
        )
    parts = path.rstrip("/").split("/")
    for part in parts:
        if not _PART.fullmatch(part) or part in {".", ".."}:
            raise AddressError(
                f"got {text[:200]!r}, expected {protocol}://bucket/folder without credentials, parameters, "
                "patterns and empty names"
            )
    return RemoteAddress(protocol, "/".join(parts))


def missing_package(address: RemoteAddress) -> str | None:
    """Return what is missing to open a store, with the command that installs it; None if nothing is."""
    known = _PROTOCOLS[address.protocol]
    try:
        importlib.import_module(known.package)
    except ImportError:
        if not known.extra:
            return f"{address.protocol}:// needs the package fsspec: {install_command(package='fsspec')}"
        command = install_command(extra=known.extra)
        return f"{address.protocol}:// needs the package {known.package} (extra: {known.extra}): {command}"
    return None


class RemoteFolder:
    """The files at an address. All methods block, may be called from any thread, and raise ``RemoteError``.

    Args:
        address: where the files lie; ``name`` of the methods is below it, empty for the address itself.
        timeout_s: seconds that the store may take to answer or to send a block of 8 MiB.

    Raises:
        AddressError: The package that opens the store is not installed; the text names the extra.
    """

    def __init__(self, address: RemoteAddress, *, timeout_s: float = TIMEOUT_S) -> None:
        missing = missing_package(address)
        if missing is not None:
            raise AddressError(missing)
        self.address = address
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._opened: Any = None
        self._pid = 0

    def entries(self, name: str = "") -> list[RemoteEntry]:
        """Return the files and folders directly in a folder, by name. A folder that does not exist is empty.

        Raises:
            RemoteNotFoundError: The bucket does not exist.
        """
        path = self._path(name)
        try:
            with self._asking(name) as files:
                files.invalidate_cache()
                found = files.ls(path, detail=True)
        except RemoteNotFoundError as error:
            if isinstance(error, RemoteBucketNotFoundError):
                raise
            return []
        entries = {}
        for info in found:
            inner = str(info["name"]).strip("/").removeprefix(path).strip("/")
            # The address itself, if it is a file or an object that stands for a folder, has no name in it.
            if inner and "/" not in inner:
                entries[inner] = _entry(inner, info)
        return [entries[inner] for inner in sorted(entries)]

    def stat(self, name: str = "") -> RemoteEntry:
        """Return a file or a folder.

        Raises:
            RemoteNotFoundError: It does not exist.
        """
        path = self._path(name)
        with self._asking(name) as files:
            files.invalidate_cache()
            return _entry(path.rpartition("/")[2], files.info(path))

    def read(self, name: str = "", *, offset: int = 0, num_bytes: int | None = None) -> bytes:
        """Return a file's bytes, or those of a range of it; fewer where the file ends.

        Raises:
            RemoteNotFoundError: The file does not exist.
        """
        end = None if num_bytes is None else offset + num_bytes
        with self._asking(name) as files:
            return bytes(files.cat_file(self._path(name), start=offset or None, end=end))

    def fetch(
        self, name: str, path: Path, *, progress: Callable[[int], None] = lambda _: None
    ) -> RemoteEntry:
        """Copy a file of the store to this machine, in blocks, several at a time. The caller checks what it holds.

        Args:
            name: the file.
            path: is created or overwritten; after an error it holds part of the file.
            progress: is called with the size of each block that is there.

        Raises:
            RemoteNotFoundError: The file does not exist.
            RemoteChangedError: It was replaced meanwhile, or a block has another size than it should.
            OSError: ``path`` cannot be written.
        """
        entry = self.stat(name)
        with path.open("wb") as file, ThreadPoolExecutor(_NUM_BLOCKS_AT_A_TIME, "fetch") as pool:
            file.truncate(entry.num_bytes)

            def copy(offset: int) -> None:
                wanted = min(_BLOCK_BYTES, entry.num_bytes - offset)
                block = self.read(name, offset=offset, num_bytes=wanted)
                if len(block) != wanted:
                    raise RemoteChangedError(
                        f"{self._shown(name)}: got {len(block):,} bytes at {offset:,}, expected {wanted:,}"
                    )
                written = 0
                while written < wanted:
                    written += os.pwrite(file.fileno(), block[written:], offset + written)
                progress(wanted)

            copies = [pool.submit(copy, offset) for offset in range(0, entry.num_bytes, _BLOCK_BYTES)]
            try:
                for each in copies:
                    each.result()
            finally:
                pool.shutdown(cancel_futures=True)
        if self.stat(name) != entry:
            raise RemoteChangedError(f"{self._shown(name)}: the file was replaced while it was read")
        return entry

    def put(self, path: Path, name: str = "") -> None:
        """Copy a file of this machine to the store. Readers see the old file, or the new one as a whole.

        Raises:
            OSError: ``path`` cannot be read.
        """
        with path.open("rb"), self._asking(name) as files:
            files.put_file(str(path), self._path(name))

    def write(self, content: bytes, name: str = "") -> None:
        """Write a small file. Readers see the old file, or the new one as a whole."""
        with self._asking(name) as files:
            files.pipe_file(self._path(name), content)

    def remove(self, name: str = "") -> None:
        """Remove a file; one that does not exist is no error."""
        try:
            with self._asking(name) as files:
                files.rm_file(self._path(name))
        except RemoteNotFoundError as error:
            if isinstance(error, RemoteBucketNotFoundError):
                raise

    def _path(self, name: str) -> str:
        return (self.address / name).path if name else self.address.path

    def _shown(self, name: str) -> str:
        return str(self.address / name if name else self.address)

    @contextmanager
    def _asking(self, name: str) -> Iterator[Any]:
        """Yield fsspec's object, and name its errors.

        After an error of credentials the next call opens it again, so that credentials that were mended are read.
        """
        try:
            yield self._files()
        except RemoteError:
            raise
        except Exception as error:
            named = _named(error, self._shown(name), self.address.protocol, self._timeout_s)
            if isinstance(named, RemoteAccessError):
                with self._lock:
                    self._opened = None
            raise named from error

    def _files(self) -> Any:
        with self._lock:
            # fsspec's thread does not live on in a process that was forked.
            if self._opened is None or self._pid != os.getpid():
                self._opened = _open(self.address.protocol, self._timeout_s)
                self._pid = os.getpid()
            return self._opened


def _open(protocol: str, timeout_s: float) -> Any:
    import fsspec

    if protocol == "memory":
        return fsspec.filesystem("memory")
    options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    if protocol == "s3":
        # s3fs counts tries itself, with pauses; botocore would multiply them.
        options["config_kwargs"] = {
            "connect_timeout": min(timeout_s, _CONNECT_TIMEOUT_S),
            "read_timeout": timeout_s,
            "retries": {"max_attempts": 0},
        }
    elif protocol == "gs":
        options["requests_timeout"] = timeout_s
    elif protocol == "az":
        # Seconds as whole numbers.
        options["connection_timeout"] = max(1, round(min(timeout_s, _CONNECT_TIMEOUT_S)))
        options["read_timeout"] = max(1, round(timeout_s))
    opened = fsspec.filesystem(protocol, **options)
    if protocol == "s3":
        opened.retries = _NUM_TRIES
    return opened


def _entry(name: str, info: dict[str, Any]) -> RemoteEntry:
    if info.get("type") == "directory":
        return RemoteEntry(name, 0, "", True)
    tags = (info.get(key) for key in ("ETag", "etag", "generation", "created"))
    tag = next((tag for tag in tags if tag), "")
    # The memory's listings and files give one time in two forms.
    text = str(tag.timestamp() if isinstance(tag, datetime) else tag).strip('"')
    return RemoteEntry(name, int(info.get("size") or 0), text, False, _modified_s(info))


def _modified_s(info: dict[str, Any]) -> float:
    times = (info.get(key) for key in ("LastModified", "mtime", "last_modified", "created"))
    time = next((time for time in times if time), 0.0)
    return time.timestamp() if isinstance(time, datetime) else float(time)


# Names of classes of errors of botocore, google-auth, azure-core and aiohttp, which need not be installed.
_ACCESS = re.compile(
    r"Credential|GoogleAuthError|ClientAuthentication|PermissionError|TokenRetrieval|ProfileNotFound"
)
_TIMEOUT = re.compile(r"Timeout")
_AWAY = re.compile(
    r"Connect|ServiceRequest|ServiceResponse|HTTPClient|ClientPayload|IncompleteRead|ProxyError|gaierror"
)
_FORBIDDEN = re.compile(r"\b(Forbidden|Unauthorized|Invalid Credentials|AccessDenied|InvalidAccessKeyId)\b")
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|specified (bucket|container) does not exist")


def _named(error: Exception, what: str, protocol: str, timeout_s: float) -> RemoteError:
    """Return a store's error as one of ours."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    classes = " ".join(kind.__name__ for each in chain for kind in type(each).__mro__)
    texts = " ".join(f"{_code(each)} {each}" for each in chain)
    reason = " ".join(str(error).split())[:_MAX_REASON] or type(error).__name__
    if _NO_BUCKET.search(texts):
        return RemoteBucketNotFoundError(f"{what}: the bucket does not exist; create it, or mend the address")
    if any(isinstance(each, FileNotFoundError) for each in chain) or "ResourceNotFound" in classes:
        return RemoteNotFoundError(f"{what}: does not exist")
    if _ACCESS.search(classes) or _FORBIDDEN.search(texts):
        return RemoteAccessError(f"{what}: access denied ({reason}): {_PROTOCOLS[protocol].credentials}")
    if any(isinstance(each, TimeoutError) for each in chain) or _TIMEOUT.search(classes):
        return RemoteTimeoutError(f"{what}: the store did not answer within {timeout_s:g} s ({reason})")
    if any(isinstance(each, ConnectionError) for each in chain) or _AWAY.search(classes):
        return RemoteTimeoutError(f"{what}: the store cannot be reached, or ended the connection ({reason})")
    return RemoteError(f"{what}: {type(error).__name__}: {reason}")


def _code(error: BaseException) -> str:
    """Return the store's own code of an error, such as NoSuchBucket."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return str(response.get("Error", {}).get("Code", ""))
    return str(getattr(error, "error_code", ""))
