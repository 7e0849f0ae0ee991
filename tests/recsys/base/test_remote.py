"""Object stores by address: S3 by moto on loopback, and fsspec's store in memory."""

from __future__ import annotations

import socket
import sys
import time
import uuid
from pathlib import Path

import pytest

from recsys.base.remote import (
    AddressError,
    RemoteAccessError,
    RemoteAddress,
    RemoteFolder,
    RemoteNotFoundError,
    RemoteTimeoutError,
    parse_address,
)
from tests.support.services.object_store import ObjectStore, bucket, object_store

__all__ = ["bucket", "object_store"]


@pytest.fixture(params=["memory", "s3"])
def folder(request: pytest.FixtureRequest) -> RemoteFolder:
    where = request.getfixturevalue("bucket") if request.param == "s3" else uuid.uuid4().hex
    return RemoteFolder(parse_address(f"{request.param}://{where}/models"))


def test_an_address_is_joined_like_a_path() -> None:
    address = parse_address("s3://bucket/a/models/")
    assert address == RemoteAddress("s3", "bucket/a/models")
    assert str(address / "m/1") == "s3://bucket/a/models/m/1"
    assert (address.name, str(address.parent)) == ("models", "s3://bucket/a")


@pytest.mark.parametrize(
    "text",
    [
        "s3://", "s3:///a", "s3://a//b", "s3://a/../b", "s3://key:secret@a/b", "gs://a/b?c=d", "az://a/*", "s3://a/\n",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(AddressError, match=r"expected \w+://bucket/folder without credentials"):
        parse_address(text)


def test_an_unknown_kind_of_store_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        AddressError, match=r"got 'ftp://a/b', expected .* s3://, gs://, az://, memory://, or a"
    ):
        parse_address("ftp://a/b")


@pytest.mark.parametrize(("protocol", "package", "extra"), [("gs", "gcsfs", "gcs"), ("az", "adlfs", "azure")])
def test_a_missing_package_names_the_extra(
    protocol: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        AddressError, match=rf"{protocol}:// needs the package {package} \(extra: {extra}\): pip install"
    ):
        RemoteFolder(parse_address(f"{protocol}://bucket"))


def test_files_are_written_listed_read_and_removed(folder: RemoteFolder, tmp_path: Path) -> None:
    assert folder.entries() == []
    folder.write(b"0123456789", "m/1/rows.bin")
    source = tmp_path / "source"
    source.write_bytes(b"abc")
    folder.put(source, "m/note.txt")
    assert [(entry.name, entry.is_folder) for entry in folder.entries()] == [("m", True)]
    assert [(e.name, e.num_bytes, e.is_folder) for e in folder.entries("m")] == [
        ("1", 0, True),
        ("note.txt", 3, False),
    ]
    assert folder.entries("m")[1] == folder.stat("m/note.txt")
    assert abs(folder.stat("m/note.txt").modified_s - time.time()) < 3600
    assert folder.stat("m/1").is_folder
    assert folder.read("m/1/rows.bin") == b"0123456789"
    assert folder.read("m/1/rows.bin", offset=3, num_bytes=4) == b"3456"
    assert folder.read("m/1/rows.bin", num_bytes=4) == b"0123"
    assert folder.read("m/1/rows.bin", offset=8, num_bytes=4) == b"89"
    folder.remove("m/note.txt")
    folder.remove("m/note.txt")
    assert [entry.name for entry in folder.entries("m")] == ["1"]


def test_a_file_of_several_blocks_is_fetched_whole(folder: RemoteFolder, tmp_path: Path) -> None:
    content = bytes(range(256)) * (9 << 12)  # 9 MiB
    folder.write(content, "rows.bin")
    folder.write(b"", "empty")
    sizes: list[int] = []
    entry = folder.fetch("rows.bin", tmp_path / "rows", progress=sizes.append)
    assert entry.num_bytes == len(content) == sum(sizes)
    assert (tmp_path / "rows").read_bytes() == content
    folder.fetch("empty", tmp_path / "empty")
    assert (tmp_path / "empty").read_bytes() == b""


def test_a_file_that_is_replaced_has_another_tag(folder: RemoteFolder) -> None:
    folder.write(b"a", "file")
    before = folder.stat("file")
    folder.write(b"b", "file")
    assert folder.stat("file") != before


def test_what_does_not_exist_is_named(folder: RemoteFolder, tmp_path: Path) -> None:
    for call in (folder.stat, folder.read, lambda name: folder.fetch(name, tmp_path / "file")):
        with pytest.raises(RemoteNotFoundError, match=r"://.*/models/absent: does not exist"):
            call("absent")


def test_a_bucket_that_does_not_exist_is_named(bucket: str) -> None:
    folder = RemoteFolder(parse_address(f"s3://{bucket}-absent/models"))
    with pytest.raises(RemoteNotFoundError, match=r"models: the bucket does not exist; create it"):
        folder.entries()
    with pytest.raises(RemoteNotFoundError, match=r"the bucket does not exist"):
        folder.write(b"a", "file")


def test_credentials_that_are_refused_are_named_and_mended_without_a_restart(
    bucket: str, object_store: ObjectStore
) -> None:
    folder = RemoteFolder(parse_address(f"s3://{bucket}/models"))
    folder.write(b"a", "file")
    with object_store.checking_credentials():
        for call in (folder.entries, lambda: folder.read("file"), lambda: folder.write(b"b", "file")):
            with pytest.raises(
                RemoteAccessError, match=r"models.*: access denied \(.*: set AWS_ACCESS_KEY_ID"
            ):
                call()
    assert folder.read("file") == b"a"


def test_missing_credentials_are_named(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(
        RemoteAccessError, match=r"access denied \(Unable to locate credentials\): set AWS_ACCESS_KEY_ID"
    ):
        RemoteFolder(parse_address(f"s3://{bucket}/models")).entries()


def test_a_store_that_is_away_is_named(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(RemoteTimeoutError, match=r"models: the store cannot be reached"):
            RemoteFolder(parse_address(f"s3://{bucket}/models")).entries()


def test_a_store_that_does_not_answer_is_named(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        folder = RemoteFolder(parse_address(f"s3://{bucket}/models"), timeout_s=0.1)
        with pytest.raises(RemoteTimeoutError, match=r"models: the store did not answer within 0.1 s"):
            folder.entries()
