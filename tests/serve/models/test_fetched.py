"""What a server keeps of its fetched copies: a hint that may be missing, damaged or out of date."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from recsys.artifact.remote.cache import ArtifactCache
from recsys.artifact.remote.fetch import ArtifactStore
from recsys.base.remote import RemoteFolder, parse_address
from serve.models.fetched import FetchedFile
from tests.support.services.object_store import upload


@pytest.fixture
def store(tmp_path: Path, artifact_path: Path) -> ArtifactStore:
    address = f"memory://{uuid.uuid4().hex}/models"
    upload(artifact_path, f"{address}/m/1")
    return ArtifactStore(RemoteFolder(parse_address(address)), ArtifactCache(tmp_path / "cache"))


def file_of(store: ArtifactStore) -> Path:
    return next(path for path in store.cache.folder.iterdir() if path.suffix == ".json")


def test_what_was_fetched_is_known_for_as_long_as_its_copy_is_there(store: ArtifactStore) -> None:
    assert FetchedFile(store).read() == {}
    found = store.look("m/1")
    store.fetch(found).release()
    FetchedFile(store).write({("m", "1"): found})
    assert FetchedFile(store).read() == {("m", "1"): found}
    assert store.cache.remove(store.key(found))
    assert FetchedFile(store).read() == {}


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "{}", '{"fetched": [1]}', '{"fetched": [{"model": "m"}]}', '{"fetched": null}', "\x00",
        json.dumps({"fetched": [{"model": "m", "version": "1", "files": [[]], "copy": "..", "is_folder": True}]}),
        json.dumps({"fetched": [{"model": "m", "version": "1", "files": 1, "copy": "..", "is_folder": True}]}),
    ],
)  # fmt: skip
def test_a_damaged_file_says_nothing(store: ArtifactStore, content: str) -> None:
    found = store.look("m/1")
    store.fetch(found).release()
    FetchedFile(store).write({("m", "1"): found})
    file_of(store).write_text(content)
    assert FetchedFile(store).read() == {}


def test_a_record_of_another_copy_does_not_count(store: ArtifactStore, tmp_path: Path) -> None:
    found = store.look("m/1")
    path = store.fetch(found).path
    FetchedFile(store).write({("m", "1"): found})
    path.rename(tmp_path / "elsewhere")
    content = json.loads(file_of(store).read_text())
    content["fetched"][0]["copy"] = "../elsewhere"
    file_of(store).write_text(json.dumps(content))
    assert FetchedFile(store).read() == {}
