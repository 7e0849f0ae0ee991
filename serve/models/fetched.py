"""What a server has fetched of a repository in a store, kept beside the copies over a restart.

A server that starts while its store is away serves these copies; one that finds its store removes copies of versions
that were removed meanwhile. The file is a hint: what it says is checked against the cache and the store.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from typing import Any

from recsys.artifact.manifest_file import MANIFEST_NAME
from recsys.artifact.remote.fetch import ArtifactStore, StoredArtifact
from recsys.base.files import parse_json, replacing
from recsys.base.remote import RemoteEntry

_log = logging.getLogger("serve")

Fetched = Mapping[tuple[str, str], StoredArtifact]


class FetchedFile:
    """The file of one repository.

    Args:
        store: the store, with its cache.
    """

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        digest = hashlib.sha256(str(store.folder.address).encode()).hexdigest()[:32]
        self._path = store.cache.folder / f".{digest}.json"

    def read(self) -> dict[tuple[str, str], StoredArtifact]:
        """Return the versions of which there are copies, by model and version; none if the file cannot be used."""
        found: dict[tuple[str, str], StoredArtifact] = {}
        try:
            content = parse_json(self._path.read_bytes(), "fetched", ValueError)
            for record in content["fetched"]:
                artifact = self._artifact(record)
                if artifact is not None:
                    found[str(record["model"]), str(record["version"])] = artifact
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            _log.warning("cache: what was fetched before is not known: %s", type(error).__name__)
            return {}
        return found

    def write(self, fetched: Fetched) -> None:
        """Keep what has been fetched. A failure is reported in the log alone."""
        records = [
            {
                "model": model,
                "version": version,
                "name": found.name,
                "is_folder": found.is_folder,
                "copy": self._store.key(found),
                "files": [[file.name, file.num_bytes, file.tag, file.modified_s] for file in found.files],
            }
            for (model, version), found in sorted(fetched.items())
        ]
        try:
            with replacing(self._path) as partial:
                partial.write_text(json.dumps({"fetched": records}))
        except OSError as error:
            _log.warning("cache: what was fetched cannot be kept for a restart: %s", error.strerror)

    def _artifact(self, record: Any) -> StoredArtifact | None:
        """Return an artifact as it was fetched; None if its copy is gone."""
        files = tuple(
            RemoteEntry(str(name), int(num_bytes), str(tag), False, float(modified_s))
            for name, num_bytes, tag, modified_s in record["files"]
        )
        path = self._store.cache.folder / str(record["copy"])
        is_folder = bool(record["is_folder"])
        if not (path / MANIFEST_NAME if is_folder else path).is_file():
            return None
        manifest = (path / MANIFEST_NAME).read_bytes() if is_folder else b""
        found = StoredArtifact(name=str(record["name"]), files=files, manifest=manifest, is_folder=is_folder)
        return found if self._store.key(found) == path.name else None
