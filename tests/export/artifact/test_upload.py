"""Artifacts whose destination is an object store: uploaded with the manifest last, replaced with it first."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.cli import main
from recsys.artifact.load import load_artifact
from recsys.base.remote import RemoteFolder, parse_address
from tests.export.test_cli import checkpoint
from tests.support.services.object_store import ObjectStore, bucket, object_store

__all__ = ["bucket", "checkpoint", "object_store"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of a store that are written and removed, in order."""
    found: list[str] = []
    put, remove = RemoteFolder.put, RemoteFolder.remove

    def noting_put(self: RemoteFolder, path: Path, name: str = "") -> None:
        found.append(name)
        put(self, path, name)

    def noting_remove(self: RemoteFolder, name: str = "") -> None:
        found.append(f"-{name}")
        remove(self, name)

    monkeypatch.setattr(RemoteFolder, "put", noting_put)
    monkeypatch.setattr(RemoteFolder, "remove", noting_remove)
    return found


def test_the_manifest_is_uploaded_last_and_removed_first(
    bucket: str, checkpoint: Path, changes: list[str], tmp_path: Path, capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    address = f"s3://{bucket}/models/clicks/1"
    assert main([str(checkpoint), "--out", address]) == 0
    assert address in capsys.readouterr().out
    assert changes[0] == "-manifest.json"
    assert changes.index("manifest.json") == len(changes) - 1
    assert "rows.bin" in changes
    assert load_artifact(address).manifest.name == "clicks"

    assert main([str(checkpoint), "--out", address]) == 2
    assert "exists; choose another name or pass --force" in capsys.readouterr().err

    RemoteFolder(parse_address(address)).write(b"1", "left")
    changes.clear()
    assert main([str(checkpoint), "--out", address, "--force"]) == 0
    assert (changes[0], changes[-2:]) == ("-manifest.json", ["manifest.json", "-left"])


def test_a_single_file_is_uploaded(
    bucket: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    address = f"s3://{bucket}/clicks.artifact.pt"
    assert main([str(checkpoint), "--out", address, "--single-file"]) == 0
    assert load_artifact(address).manifest.name == "clicks"


def test_a_store_that_refuses_is_named_before_anything_is_exported(
    bucket: str, checkpoint: Path, object_store: ObjectStore, capsys: Capture
) -> None:
    with object_store.checking_credentials():
        assert main([str(checkpoint), "--out", f"s3://{bucket}/clicks.artifact"]) == 1
    assert "recsys-export: out: s3://" in (said := capsys.readouterr().err)
    assert "access denied" in said


@pytest.mark.parametrize("option", ["--delta", "--compact"])
def test_a_delta_is_not_written_to_an_address(
    bucket: str, checkpoint: Path, option: str, capsys: Capture
) -> None:
    arguments = [option, str(checkpoint), str(checkpoint), "--out", f"s3://{bucket}/a.delta"]
    assert main(arguments) == 2
    assert "expected a path: a delta is written to a file, then uploaded" in capsys.readouterr().err
