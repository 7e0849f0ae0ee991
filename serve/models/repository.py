"""Model repositories: a folder of models, each a folder of versions; or a single artifact.

```
root/<model>/<version>/       an artifact; the version is a whole number from 1
root/<model>/<version>.pt     an artifact as a single file
root/<model>/deltas/<file>    deltas of the model's versions
```

Names come from operators and from the disk and are not trusted: anything that is not a plain name, or leads
out of the root by a symbolic link, is ignored. A folder without a manifest is not complete and is ignored
too. ``recsys-export`` moves whole artifacts into place; other tools must copy the manifest last.
"""

from __future__ import annotations

import logging
import re
import stat
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

from recsys.artifact.manifest_file import MANIFEST_NAME, read_manifest_bytes
from serve.errors import ModelNotFoundError, RequestError
from serve.models.routing import version_order

_log = logging.getLogger("serve")
DELTAS = "deltas"
# Valid names of models, versions and files: plain file names on every system, safe in logs and metrics.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
# No leading zeros, so that a version has one name; fits an int64.
_VERSION = re.compile(r"[1-9][0-9]{0,17}")
#: The version of an artifact that is served by itself. Triton's tools parse versions as integers.
ONLY_VERSION = "1"
#: Ends the name of an artifact that is a single file.
FILE_SUFFIX = ".pt"

#: Name, size, time in nanoseconds and inode number, or the store's tag, of each file of an artifact.
Fingerprint = tuple[tuple[str, int, int, int | str], ...]


class ModelSource(Protocol):
    """A source of models. Its methods read the disk or ask a store; do not call them on the event loop.

    Attributes:
        is_single: whether it is one artifact.
    """

    is_single: bool

    def names(self) -> list[str]:
        """Return the names of the models, sorted."""
        ...

    def all_names(self) -> list[str]:
        """Return the names of all models that are there, also of those that are not to be served."""
        ...

    def versions(self, name: str) -> list[str]:
        """Return a model's versions, oldest first; none for an unknown model."""
        ...

    def files(self, name: str, version: str) -> Fingerprint:
        """Return a value that changes when the files of an artifact change; empty if there are none.

        Raises:
            ModelNotFoundError: The model or version does not exist.
        """
        ...

    def manifest_bytes(self, name: str, version: str) -> bytes:
        """Return the manifest of an artifact, not yet checked.

        Raises:
            ArtifactError: it cannot be read.
            ModelNotFoundError: The model or version does not exist.
        """
        ...

    def path(self, name: str, version: str) -> Path:
        """Return the path of an artifact. One in a store is fetched first; it stays until ``release``.

        Raises:
            ArtifactError: it cannot be fetched as a whole, because of its files.
            ModelNotFoundError: The model or version does not exist.
            OSError: the store, the cache or the disk cannot be used now.
        """
        ...

    def is_removed(self, name: str, version: str) -> bool:
        """Return whether a version is to leave memory because ``versions`` has found no file of it any more."""
        ...

    def release(self, name: str, version: str) -> None:
        """Note that nothing reads an artifact any more whose ``path`` was asked for."""
        ...

    def delta_path(self, name: str, file_name: str) -> Path:
        """Return the path of a delta file.

        Raises:
            ModelNotFoundError: The file does not exist.
            RequestError: the name is not a plain file name.
        """
        ...


class ManyModels:
    """What repositories do alike: they pass over names that no model or version has, and say so once.

    Args:
        models: those to serve; empty for all.
    """

    is_single = False

    def __init__(self, models: Sequence[str]) -> None:
        self._models = frozenset(models)
        self._told: set[str] = set()

    def all_names(self) -> list[str]:
        """See ``ModelSource``."""
        raise NotImplementedError

    def names(self) -> list[str]:
        """See ``ModelSource``.

        Raises:
            OSError: the repository cannot be read.
        """
        return [name for name in self.all_names() if not self._models or name in self._models]

    def _is_model(self, entry: str) -> bool:
        """Return whether a name in the root may be a model's."""
        if entry.startswith("."):
            return False
        if not is_name(entry):
            self._tell(f"{entry[:64]!r} is passed over: a model's name has letters, digits and _ - .")
        return is_name(entry)

    def _is_version(self, model: str, entry: str, version: str) -> bool:
        """Return whether a name in a model's folder, less the end of single files, may be a version's."""
        if entry == DELTAS or entry.startswith("."):
            return False
        if not is_version(version):
            self._tell(f"{model}/{entry[:64]!r} is passed over: versions are whole numbers from 1")
        return is_version(version)

    def _check_delta(self, name: str, file_name: str) -> None:
        """Raise ModelNotFoundError or RequestError for names that no model and no delta has."""
        if not is_name(name):
            raise ModelNotFoundError(f"model: got {name[:64]!r}, expected one that lies in the repository")
        check_file_name(file_name)

    def _tell(self, text: str) -> None:
        """Log a text once, although the repository is scanned repeatedly."""
        if text not in self._told:
            self._told.add(text)
            _log.warning("repository: %s", text)


class OneModel:
    """What single artifacts do alike: each is a model of version 1, with the name in its manifest."""

    is_single = True
    version = ONLY_VERSION

    def _manifest(self) -> bytes:
        """Return the manifest, not yet checked."""
        raise NotImplementedError

    @cached_property
    def name(self) -> str:
        """The name in the manifest, which is read when this is first asked for: that takes torch.

        Raises:
            ArtifactError: the manifest is damaged.
        """
        from recsys.artifact.manifest import Manifest

        return Manifest.loads(self._manifest()).name

    def names(self) -> list[str]:
        """See ``ModelSource``."""
        return [self.name]

    def all_names(self) -> list[str]:
        """See ``ModelSource``."""
        return [self.name]

    def versions(self, name: str) -> list[str]:
        """See ``ModelSource``."""
        return [self.version] if name == self.name else []

    def _check(self, name: str, version: str) -> None:
        """Raise ModelNotFoundError for another model or version."""
        if (name, version) != (self.name, self.version):
            raise ModelNotFoundError(
                f"version: got {version[:64]!r} of model {name[:64]!r}, expected {self.version!r} of {self.name!r}"
            )

    def _check_delta(self, name: str, file_name: str) -> None:
        """Raise ModelNotFoundError for another model, and RequestError for a name that no delta has."""
        if name != self.name:
            raise ModelNotFoundError(f"model: got {name[:64]!r}, expected {self.name!r}")
        check_file_name(file_name)


class _OnDisk:
    """What sources on this machine's disk do alike."""

    def path(self, name: str, version: str) -> Path:
        """See ``ModelSource``."""
        raise NotImplementedError

    def files(self, name: str, version: str) -> Fingerprint:
        """See ``ModelSource``."""
        return fingerprint(self.path(name, version))

    def manifest_bytes(self, name: str, version: str) -> bytes:
        """See ``ModelSource``."""
        return read_manifest_bytes(self.path(name, version))

    def is_removed(self, name: str, version: str) -> bool:
        """See ``ModelSource``. What is loaded stays, whatever happens to its files."""
        del name, version
        return False

    def release(self, name: str, version: str) -> None:
        """See ``ModelSource``."""


class Repository(ManyModels, _OnDisk):
    """A folder of models.

    Args:
        root: the folder.
        models: those to serve; empty for all.
    """

    def __init__(self, root: Path, models: Sequence[str] = ()) -> None:
        super().__init__(models)
        self._root = root

    def all_names(self) -> list[str]:
        """See ``ModelSource``.

        Raises:
            OSError: the root cannot be read.
        """
        return [
            entry.name
            for entry in sorted(self._root.iterdir())
            if self._is_model(entry.name) and self._holds(entry, entry.name, Path.is_dir)
        ]

    def versions(self, name: str) -> list[str]:
        """See ``ModelSource``."""
        folder = self._root / name
        if not is_name(name) or not self._holds(folder, name, Path.is_dir):
            return []
        try:
            entries = sorted(folder.iterdir())
        except OSError as error:
            self._tell(f"{name} is passed over: {error.strerror}")
            return []
        found = {
            version
            for entry in entries
            if self._is_version(name, entry.name, version := entry.name.removesuffix(FILE_SUFFIX))
            and self._holds(entry, f"{name}/{entry.name}", _is_whole)
        }
        return sorted(found, key=version_order)

    def path(self, name: str, version: str) -> Path:
        """See ``ModelSource``. If a version exists both as a folder and as a file, the folder counts."""
        if is_name(name) and is_version(version):
            folder = self._root / name / version
            for path in (folder, folder.with_name(version + FILE_SUFFIX)):
                if self._holds(path, f"{name}/{path.name}", _is_whole):
                    return path
        raise ModelNotFoundError(
            f"version: got {version[:64]!r} of model {name[:64]!r}, expected one that lies in the repository"
        )

    def delta_path(self, name: str, file_name: str) -> Path:
        """See ``ModelSource``."""
        self._check_delta(name, file_name)
        path = self._root / name / DELTAS / file_name
        return _delta(path, is_inside=self._holds(path, f"{name}/{DELTAS}/{file_name}", Path.is_file))

    def _holds(self, path: Path, what: str, is_wanted: Callable[[Path], bool]) -> bool:
        """Return whether a path is what is wanted, within the repository. One that cannot be looked at is not."""
        try:
            if not is_wanted(path):
                if path.is_symlink():
                    path.stat()  # raises for links that lead nowhere or to themselves
                return False
            is_inside = path.resolve().is_relative_to(self._root.resolve())
        except FileNotFoundError:
            return False
        # RuntimeError: pathlib's for a link that leads to itself, up to Python 3.12.
        except (OSError, RuntimeError) as error:
            self._tell(f"{what} is passed over: {getattr(error, 'strerror', None) or error}")
            return False
        if not is_inside:
            self._tell(f"{what} is passed over: it leads out of the repository")
        return is_inside


class SingleArtifact(OneModel, _OnDisk):
    """One artifact as a repository of one model with version 1. Its deltas are in ``<artifact>.deltas``.

    Args:
        path: an artifact written by ``recsys-export``.

    Raises:
        ArtifactError: the path is not an artifact.
    """

    def __init__(self, path: Path) -> None:
        read_manifest_bytes(path)
        self._path = path

    def _manifest(self) -> bytes:
        return read_manifest_bytes(self._path)

    def path(self, name: str, version: str) -> Path:
        """See ``ModelSource``."""
        self._check(name, version)
        return self._path

    def delta_path(self, name: str, file_name: str) -> Path:
        """See ``ModelSource``."""
        self._check_delta(name, file_name)
        folder = self._path.with_name(f"{self._path.name}.{DELTAS}")
        path = folder / file_name
        try:
            is_inside = path.resolve().parent == folder.resolve()
        except (OSError, RuntimeError):  # a link that leads to itself
            is_inside = False
        return _delta(path, is_inside=is_inside)


def fingerprint(path: Path) -> Fingerprint:
    """Return a value that changes when an artifact's files change; empty if there are none."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        found = [(file.name, file.stat()) for file in files]
    except OSError:
        return ()
    return tuple((name, s.st_size, s.st_mtime_ns, s.st_ino) for name, s in found if stat.S_ISREG(s.st_mode))


def _is_whole(path: Path) -> bool:
    if path.suffix == FILE_SUFFIX:
        return path.is_file()
    return path.is_dir() and (path / MANIFEST_NAME).is_file()


def is_name(name: str) -> bool:
    """Return whether a name may be a model's, or a file's."""
    return _NAME.fullmatch(name) is not None


def is_version(name: str) -> bool:
    """Return whether a name may be a version's."""
    return _VERSION.fullmatch(name) is not None


def check_file_name(file_name: str) -> None:
    """Raise RequestError if a name is not a plain file name."""
    if not is_name(file_name):
        raise RequestError(f"delta: got {file_name[:64]!r}, expected the name of a file, without folders")


def _delta(path: Path, *, is_inside: bool) -> Path:
    if not is_inside or not path.is_file():
        raise ModelNotFoundError(
            f"delta: got {path.name!r}, expected a file in the model's folder {DELTAS!r}"
        )
    return path
