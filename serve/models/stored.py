"""Model repositories and artifacts in object stores, with a cache of this machine in front.

The same names as in a folder (serve/models/repository.py). A version counts once all of its files are there. What is
listed costs no copy: an artifact is fetched when it is loaded, and its copy stays for as long as it is in memory.
Methods that cannot ask the store raise ``RemoteError``, an ``OSError``: what is loaded then goes on serving.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from recsys.artifact.remote.cache import ArtifactCache, Copy
from recsys.artifact.remote.fetch import ArtifactStore, StoredArtifact
from recsys.base.remote import RemoteAddress, RemoteError, RemoteFolder, RemoteNotFoundError
from recsys.errors import ArtifactError, ArtifactNotFoundError, MissingPartError
from serve.errors import ModelNotFoundError
from serve.models.fetched import Fetched, FetchedFile
from serve.models.repository import (
    DELTAS,
    FILE_SUFFIX,
    Fingerprint,
    ManyModels,
    OneModel,
    is_name,
)
from serve.models.routing import version_order

_log = logging.getLogger("serve")


class _Copies:
    """Copies of artifacts and deltas that a server uses, by what they are of."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._held: dict[tuple[str, ...], Copy] = {}

    def artifact(self, found: StoredArtifact, *what: str) -> Path:
        """Fetch an artifact; its copy replaces an earlier one."""
        return self._hold(self._store.fetch(found, _log.info), what)

    def delta(self, address: str, model: str) -> Path:
        """Fetch a delta, which stays until the model's next one."""
        return self._hold(self._store.fetch_file(address, _log.info), (DELTAS, model))

    def release(self, *what: str) -> None:
        """Let the cache remove a copy."""
        with self._lock:
            copy = self._held.pop(what, None)
        if copy is not None:
            copy.release()

    def _hold(self, copy: Copy, what: tuple[str, ...]) -> Path:
        with self._lock:
            before = self._held.get(what)
            self._held[what] = copy
        if before is not None:
            before.release()
        return copy.path


class StoredRepository(ManyModels):
    """A repository of models in a store; see ``ModelSource``.

    Args:
        address: its root.
        models: those to serve; empty for all.
        cache: where copies lie.
        starts_from_copies: whether copies that an earlier process fetched are served until the store can be asked.

    Raises:
        AddressError: the package that opens the store is not installed.
    """

    def __init__(
        self,
        address: RemoteAddress,
        models: Sequence[str],
        cache: ArtifactCache,
        *,
        starts_from_copies: bool = True,
    ) -> None:
        super().__init__(models)
        self._folder = RemoteFolder(address)
        self._store = ArtifactStore(self._folder, cache)
        self._copies = _Copies(self._store)
        # The versions of each model, as they were last listed.
        self._listed: dict[str, Mapping[str, StoredArtifact]] = {}
        # Those of which there are files, whole or not.
        self._there: dict[str, set[str]] = {}
        self._kept = FetchedFile(self._store)
        self._fetched = self._kept.read()
        self._starts_from_copies = starts_from_copies
        # Models that were listed once, and the root as an empty name; until then copies of an earlier process stand in.
        self._seen: set[str] = set()

    def all_names(self) -> list[str]:
        """See ``ModelSource``.

        Raises:
            RemoteError: the store cannot be asked.
        """
        try:
            entries = self._folder.entries()
        except RemoteError as error:
            return sorted({model for model, _ in self._copies_instead("", error)})
        self._seen.add("")
        return [entry.name for entry in entries if self._is_model(entry.name) and entry.is_folder]

    def versions(self, name: str) -> list[str]:
        """See ``ModelSource``. A version that is not whole yet does not count.

        Raises:
            RemoteError: the store cannot be asked.
        """
        if not is_name(name):
            return []
        try:
            entries = self._folder.entries(name)
        except RemoteError as error:
            copies = self._copies_instead(name, error)
            self._listed[name] = {
                version: copies[model, version] for model, version in copies if model == name
            }
            return sorted(self._listed[name], key=version_order)
        found: dict[str, StoredArtifact] = {}
        there: set[str] = set()
        for entry in entries:
            version = entry.name if entry.is_folder else entry.name.removesuffix(FILE_SUFFIX)
            if not self._is_version(name, entry.name, version):
                continue
            if entry.is_folder:
                there.add(version)
                whole = self._whole(f"{name}/{entry.name}")
                if whole is not None:
                    found[version] = whole
            elif entry.name.endswith(FILE_SUFFIX):
                single = StoredArtifact(name=f"{name}/{entry.name}", files=(entry,), is_folder=False)
                found.setdefault(version, single)
        self._seen.add(name)
        self._listed[name], self._there[name] = found, there | {*found}
        self._let_go(name, found)
        return sorted(found, key=version_order)

    def files(self, name: str, version: str) -> Fingerprint:
        """See ``ModelSource``. The store is not asked again."""
        return _fingerprint(self._known(name, version))

    def manifest_bytes(self, name: str, version: str) -> bytes:
        """See ``ModelSource``."""
        return self._store.manifest_bytes(self._known(name, version))

    def path(self, name: str, version: str) -> Path:
        """See ``ModelSource``."""
        self.versions(name)
        found = self._known(name, version)
        path = self._copies.artifact(found, name, version)
        if self._fetched.get((name, version)) != found:
            self._fetched[name, version] = found
            self._kept.write(self._fetched)
        return path

    def is_removed(self, name: str, version: str) -> bool:
        """See ``ModelSource``. While a version is written over, or half removed, what is loaded stays."""
        return name in self._there and version not in self._there[name]

    def release(self, name: str, version: str) -> None:
        """See ``ModelSource``."""
        self._copies.release(name, version)

    def delta_path(self, name: str, file_name: str) -> Path:
        """See ``ModelSource``."""
        self._check_delta(name, file_name)
        return _delta(self._copies, f"{name}/{DELTAS}/{file_name}", name, file_name)

    def _copies_instead(self, name: str, error: RemoteError) -> Fetched:
        """Return what stands in for a model, or for the root, that has not been listed yet.

        Raises:
            RemoteError: ``error``, if nothing does.
        """
        if not self._starts_from_copies or name in self._seen or not self._fetched:
            raise error
        self._tell(
            f"the store cannot be asked: {error}; copies that were fetched before are served until it can"
        )
        return dict(self._fetched)

    def _known(self, name: str, version: str) -> StoredArtifact:
        found = self._listed.get(name, {}).get(version)
        if found is None:
            raise ModelNotFoundError(
                f"version: got {version[:64]!r} of model {name[:64]!r}, expected one that is whole in the repository"
            )
        return found

    def _whole(self, name: str) -> StoredArtifact | None:
        """Return an artifact; None if it is not whole, which is said once."""
        try:
            found = self._store.look(name)
        except ArtifactNotFoundError:  # removed since it was listed
            return None
        except ArtifactError:
            self._tell(f"{name} is passed over: it has no manifest, or not yet")
            return None
        if found.missing:
            self._tell(f"{name} is passed over until it is whole: {found.missing}")
            return None
        return found

    def _let_go(self, name: str, found: Mapping[str, StoredArtifact]) -> None:
        """Remove copies of versions that are gone, and say which versions were changed."""
        for (model, version), fetched in [*self._fetched.items()]:
            now = found.get(version)
            if model != name or now == fetched:
                continue
            if self.is_removed(name, version):
                if self._store.cache.remove(self._store.key(fetched)):
                    del self._fetched[model, version]
                    self._kept.write(self._fetched)
            elif now is not None:
                self._tell(
                    f"{name}/{version} was written to after it was fetched; the copy that is loaded stays until it is "
                    "loaded again; new weights are a new version"
                )


class StoredSingleArtifact(OneModel):
    """One artifact in a store as a repository of one model with version 1. Its deltas are in ``<artifact>.deltas``.

    Args:
        address: the artifact.
        cache: where copies lie.

    Raises:
        AddressError: the package that opens the store is not installed.
        ArtifactError: there is no artifact, or it is not whole.
        RemoteError: the store cannot be asked.
    """

    def __init__(self, address: RemoteAddress, cache: ArtifactCache) -> None:
        is_bucket = address == address.parent
        self._name = "" if is_bucket else address.name
        self._store = ArtifactStore(RemoteFolder(address.parent), cache)
        self._copies = _Copies(self._store)
        self._found = self._look()

    def _manifest(self) -> bytes:
        return self._store.manifest_bytes(self._found)

    def files(self, name: str, version: str) -> Fingerprint:
        """See ``ModelSource``."""
        self._check(name, version)
        return _fingerprint(self._found)

    def manifest_bytes(self, name: str, version: str) -> bytes:
        """See ``ModelSource``."""
        self._check(name, version)
        return self._manifest()

    def path(self, name: str, version: str) -> Path:
        """See ``ModelSource``."""
        self._check(name, version)
        self._found = self._look()
        return self._copies.artifact(self._found, name, version)

    def is_removed(self, name: str, version: str) -> bool:
        """See ``ModelSource``."""
        del name, version
        return False

    def release(self, name: str, version: str) -> None:
        """See ``ModelSource``."""
        self._copies.release(name, version)

    def delta_path(self, name: str, file_name: str) -> Path:
        """See ``ModelSource``."""
        self._check_delta(name, file_name)
        return _delta(self._copies, f"{self._name}.{DELTAS}/{file_name}", name, file_name)

    def _look(self) -> StoredArtifact:
        found = self._store.look(self._name)
        if found.missing:
            raise MissingPartError(
                f"artifact: {self._store.shown(self._name)}: {found.missing}; it may still be uploaded"
            )
        return found


def _fingerprint(found: StoredArtifact) -> Fingerprint:
    return tuple((file.name, file.num_bytes, round(file.modified_s * 1e9), file.tag) for file in found.files)


def _delta(copies: _Copies, address: str, model: str, file_name: str) -> Path:
    try:
        return copies.delta(address, model)
    except RemoteNotFoundError:
        raise ModelNotFoundError(
            f"delta: got {file_name!r}, expected a file in the model's folder {DELTAS!r}"
        ) from None
