"""Artifacts fetched from a store: whole, checked, resumed; single files, deltas and damage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recsys.artifact.load import load_artifact
from recsys.artifact.manifest_file import MANIFEST_NAME, read_manifest_bytes
from recsys.artifact.remote.cache import ArtifactCache
from recsys.artifact.remote.fetch import ArtifactStore, local_artifact
from recsys.base.remote import RemoteFolder, RemoteTimeoutError, parse_address
from recsys.errors import ArtifactNotFoundError, ChecksumError, ForeignFileError, MissingPartError
from tests.support.services.object_store import ObjectStore, Proxy, bucket, object_store, proxy, upload

__all__ = ["bucket", "object_store", "proxy"]


@pytest.fixture
def address(bucket: str, pristine: Path) -> str:
    """An artifact in a store."""
    upload(pristine, f"s3://{bucket}/ranker.artifact")
    return f"s3://{bucket}/ranker.artifact"


@pytest.fixture
def cache(tmp_path: Path) -> ArtifactCache:
    return ArtifactCache(tmp_path / "cache")


def store_of(address: str, cache: ArtifactCache) -> ArtifactStore:
    return ArtifactStore(RemoteFolder(parse_address(address)), cache)


def copies(cache: ArtifactCache) -> list[Path]:
    return [path for path in cache.folder.iterdir() if not path.name.startswith(".")]


def test_an_artifact_is_fetched_once_with_the_same_files(
    address: str, pristine: Path, cache: ArtifactCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = local_artifact(address, cache)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == {
        file.name: file.read_bytes() for file in pristine.iterdir()
    }
    monkeypatch.setattr(RemoteFolder, "fetch", None)
    assert local_artifact(address, cache) == path


def test_an_artifact_is_loaded_by_its_address(
    address: str, pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load_artifact(address, target="cpu").digest == load_artifact(pristine, target="cpu").digest
    assert len(copies(ArtifactCache(tmp_path / "recsys-serving" / "artifacts"))) == 1


def test_a_single_file_is_fetched_and_its_manifest_read_in_place(
    bucket: str, pristine_file: Path, cache: ArtifactCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(pristine_file, f"s3://{bucket}/m/ranker.pt")
    store = store_of(f"s3://{bucket}/m", cache)
    found = store.look("ranker.pt")
    assert store.manifest_bytes(found) == read_manifest_bytes(pristine_file)
    assert store.fetch(found).path.read_bytes() == pristine_file.read_bytes()
    monkeypatch.setattr(RemoteFolder, "fetch", None)
    assert store.fetch(found).path.suffix == ".pt"


def test_what_is_not_whole_says_what_is_missing(address: str, pristine: Path, cache: ArtifactCache) -> None:
    folder = RemoteFolder(parse_address(address))
    folder.remove("rows.bin")
    with pytest.raises(MissingPartError, match=r"part 'rows.bin': missing; it may still be uploaded"):
        local_artifact(address, cache)
    folder.write((pristine / "rows.bin").read_bytes()[:-1], "rows.bin")
    with pytest.raises(MissingPartError, match=r"part 'rows.bin': got \d+ bytes, expected \d+; it may"):
        local_artifact(address, cache)
    folder.remove(MANIFEST_NAME)
    with pytest.raises(ForeignFileError, match=r"ranker.artifact' without manifest.json"):
        local_artifact(address, cache)
    with pytest.raises(ArtifactNotFoundError, match=r"absent', which does not exist"):
        local_artifact(f"{address}/absent", cache)


@pytest.mark.parametrize("name", ["rows.bin", "target-0.pt"])
def test_a_part_with_other_bytes_is_refused(
    address: str, pristine: Path, cache: ArtifactCache, name: str
) -> None:
    damaged = bytearray((pristine / name).read_bytes())
    damaged[0] ^= 1
    RemoteFolder(parse_address(address)).write(bytes(damaged), name)
    with pytest.raises(ChecksumError, match="checksum does not match"):
        local_artifact(address, cache)
    assert copies(cache) == []


def test_a_download_that_is_cut_leaves_nothing_that_counts_and_goes_on_later(
    address: str,
    proxy: Proxy,
    cache: ArtifactCache,
    object_store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    proxy.cut = "rows.bin"
    found = store_of(address, cache).look()
    with pytest.raises(
        RemoteTimeoutError, match=r"rows.bin: the store cannot be reached, or ended the connection"
    ):
        local_artifact(address, cache)
    assert copies(cache) == []
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_store.endpoint)
    # What was checked before the cut is not fetched again.
    folder = RemoteFolder(parse_address(address))
    folder.remove("target-0.pt")
    path = store_of(address, cache).fetch(found).path
    load_artifact(path, target="cpu")


def test_a_process_killed_while_it_fetches_leaves_nothing_that_counts(
    address: str, proxy: Proxy, cache: ArtifactCache
) -> None:
    proxy.hold = "rows.bin"
    program = (
        "import sys; from pathlib import Path; from recsys.artifact.remote.cache import ArtifactCache\n"
        "from recsys.artifact.remote.fetch import local_artifact\n"
        "local_artifact(sys.argv[1], ArtifactCache(Path(sys.argv[2])))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, address, str(cache.folder)],
        env={**os.environ, "AWS_ENDPOINT_URL": proxy.endpoint},
    ) as fetching:
        assert proxy.held.wait(60)
        fetching.send_signal(signal.SIGKILL)
    assert fetching.returncode == -signal.SIGKILL
    assert copies(cache) == []
    load_artifact(local_artifact(address, cache), target="cpu")
    assert len(copies(cache)) == 1


def test_what_is_written_over_an_artifact_is_another_copy(
    address: str, pristine: Path, cache: ArtifactCache
) -> None:
    before = local_artifact(address, cache)
    folder = RemoteFolder(parse_address(address))
    folder.write((pristine / MANIFEST_NAME).read_bytes() + b"\n", MANIFEST_NAME)
    after = local_artifact(address, cache)
    assert before != after
    assert (before / "rows.bin").read_bytes() == (after / "rows.bin").read_bytes()


def test_progress_is_said_of_what_takes_long(
    address: str, cache: ArtifactCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("recsys.artifact.remote.fetch.time.monotonic", lambda: next(clock) * 0.7)
    lines: list[str] = []
    store = store_of(address, cache)
    store.fetch(store.look(), lines.append)
    assert "ranker.artifact: " in lines[0]
    assert " fetched, " in lines[0]
    assert " fetched in " in lines[-1]
