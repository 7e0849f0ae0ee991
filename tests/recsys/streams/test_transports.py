"""What every transport does alike: a folder, object stores and Kafka."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from recsys.artifact.delta.file import DeltaFile
from recsys.base.remote import AddressError, RemoteAccessError, RemoteFolder, parse_address
from recsys.errors import ArtifactError
from recsys.streams.interface import StreamError
from recsys.streams.opening import open_sink, open_source
from tests.recsys.streams.deltas import ARTIFACT, write, write_chain
from tests.support.services.kafka import Broker, kafka
from tests.support.services.object_store import ObjectStore, bucket, object_store

__all__ = ["bucket", "kafka", "object_store"]


@pytest.fixture(params=["folder", "memory", "s3", "kafka"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a stream that does not exist yet."""
    name = uuid.uuid4().hex
    if request.param == "folder":
        return str(tmp_path / "stream")
    if request.param == "kafka":
        broker: Broker = request.getfixturevalue("kafka")
        return broker.address(name, chunk_bytes=1024)
    if request.param == "s3":
        name = request.getfixturevalue("bucket")
    return f"{request.param}://{name}/deltas"


def test_what_is_published_is_found_whole_and_once(address: str, tmp_path: Path) -> None:
    paths = write_chain(tmp_path, 3, num_bytes=5000)
    source = open_source(address, tmp_path / "cache")
    source.expect(ARTIFACT)
    assert source.check()
    assert list(source.scan()) == []
    with open_sink(address) as sink:
        for number in (2, 0, 0, 1, 2):
            sink.publish(paths[number])
    assert source.check() == ""
    found = source.scan()
    assert [(delta.name, delta.created_s, delta.error) for delta in found] == [
        ("0.delta", 100.0, ""),
        ("1.delta", 101.0, ""),
        ("2.delta", 102.0, ""),
    ]
    assert [delta.base for delta in found] == [ARTIFACT, found[0].digest, found[1].digest]
    assert {delta.artifact for delta in found} == {ARTIFACT}
    assert list(source.scan()) == list(found)
    for _ in range(2):
        for delta, path in zip(found, paths, strict=True):
            assert source.fetch(delta).read_bytes() == path.read_bytes()
    source.close()


def test_what_is_no_whole_delta_is_not_published(address: str, tmp_path: Path) -> None:
    write(tmp_path / "a.delta")
    (tmp_path / "b.delta").write_bytes((tmp_path / "a.delta").read_bytes()[:-1])
    (tmp_path / "a.delta").rename(tmp_path / "a")
    with open_sink(address) as sink:
        with pytest.raises(ArtifactError):
            sink.publish(tmp_path / "b.delta")
        with pytest.raises(StreamError, match=r"expected a name that ends in \.delta"):
            sink.publish(tmp_path / "a")
    source = open_source(address, tmp_path / "cache")
    assert list(source.scan()) == []
    source.close()


def test_a_copy_that_is_damaged_is_fetched_again(address: str, tmp_path: Path) -> None:
    write(tmp_path / "a.delta", num_bytes=5000)
    with open_sink(address) as sink:
        sink.publish(tmp_path / "a.delta")
    source = open_source(address, tmp_path / "cache")
    source.expect(ARTIFACT)
    (delta,) = source.scan()
    copy = source.fetch(delta)
    if copy.parent == tmp_path / "stream":
        assert not source.discard(delta)
    else:
        copy.write_bytes(b"damaged")
        assert source.discard(delta)
        assert source.fetch(delta).read_bytes() == (tmp_path / "a.delta").read_bytes()
    source.close()


def test_downloaded_deltas_take_no_more_room_than_they_may(address: str, tmp_path: Path) -> None:
    paths = write_chain(tmp_path, 6, num_bytes=20_000)
    size = paths[0].stat().st_size
    with open_sink(address) as sink:
        for path in paths:
            sink.publish(path)
    cache = tmp_path / "cache"
    source = open_source(address, cache, cache_bytes=2 * size + 100)
    source.expect(ARTIFACT)
    for delta, path in [*zip(source.scan(), paths, strict=True)] * 2:
        assert source.fetch(delta).read_bytes() == path.read_bytes()
        taken = [file for file in cache.glob("*") if file.suffix != ".json"]
        assert sum(file.stat().st_size for file in taken) <= 2 * size + 100
    source.close()
    small = open_source(address, cache, cache_bytes=size - 1)
    small.expect(ARTIFACT)
    (first, *_) = small.scan()
    if not address.startswith("/"):
        with pytest.raises(StreamError, match=rf"0.delta: got {size:,} bytes.*delta_cache_bytes"):
            small.fetch(first)
    small.close()


def test_a_folder_that_cannot_be_written_to_is_an_error_that_names_the_setting(
    address: str, tmp_path: Path
) -> None:
    write(tmp_path / "a.delta", num_bytes=5000)
    with open_sink(address) as sink:
        sink.publish(tmp_path / "a.delta")
    (tmp_path / "file").touch()
    source = open_source(address, tmp_path / "file" / "cache")
    source.expect(ARTIFACT)
    (delta,) = source.scan()
    if not address.startswith("/"):
        with pytest.raises(
            StreamError, match=r"a.delta: it cannot be kept .*\(Not a directory\).*delta_cache"
        ):
            source.fetch(delta)
    source.close()


def test_a_source_that_starts_again_takes_what_it_has(address: str, tmp_path: Path) -> None:
    paths = write_chain(tmp_path, 2, num_bytes=5000)
    with open_sink(address) as sink:
        for path in paths:
            sink.publish(path)
    for _ in range(2):
        source = open_source(address, tmp_path / "cache")
        source.expect(ARTIFACT)
        for delta, path in zip(source.scan(), paths, strict=True):
            with DeltaFile(source.fetch(delta)) as file:
                assert file.digest == delta.digest
            assert source.fetch(delta).read_bytes() == path.read_bytes()
        source.close()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("ftp://host/deltas", "begins with one of .*kafka://host:port/topic"),
        ("s3://key:secret@bucket/a?b", "without credentials"),
        ("kafka://host/topic", "expected kafka://host:port"),
        ("kafka://host:0/topic", "expected kafka://host:port"),
        ("kafka://host:9092", "expected a topic"),
        ("kafka://host:9092/a b", "expected a topic"),
        ("kafka://host:9092/t?chunk_byte=4096", "got option 'chunk_byte'.*did you mean .*chunk_bytes"),
        ("kafka://host:9092/t?chunk_bytes=12", "chunk_bytes: got '12', expected a whole number from 1024"),
        ("kafka://host:9092/t?timeout_s=nan", "timeout_s: got 'nan', expected seconds"),
    ],
)
def test_a_wrong_address_is_refused_with_what_is_expected(address: str, expected: str) -> None:
    for open_it in (open_sink, open_source):
        with pytest.raises(AddressError, match=expected):
            open_it(address)


def test_a_password_in_an_address_is_not_shown() -> None:
    for address in ("kafka://u:hunter2@host:9092/t", "kafka://host:9092/t?sasl.password=hunter2"):
        with pytest.raises(AddressError) as caught:
            open_source(address)
        assert "hunter2" not in str(caught.value)


def test_a_store_that_refuses_the_credentials_and_takes_them_again(
    object_store: ObjectStore, bucket: str, tmp_path: Path
) -> None:
    write(tmp_path / "a.delta")
    source = open_source(f"s3://{bucket}/deltas", tmp_path / "cache")
    with open_sink(f"s3://{bucket}/deltas") as sink:
        sink.publish(tmp_path / "a.delta")
        with object_store.checking_credentials():
            for ask in (source.check, source.scan, lambda: sink.publish(tmp_path / "a.delta")):
                with pytest.raises(RemoteAccessError, match="access denied"):
                    ask()
    (delta,) = source.scan()
    assert source.fetch(delta).read_bytes() == (tmp_path / "a.delta").read_bytes()


def test_a_damaged_and_an_empty_file_of_a_store_are_damaged_deltas(bucket: str, tmp_path: Path) -> None:
    write(tmp_path / "a.delta", num_bytes=100)
    data = (tmp_path / "a.delta").read_bytes()
    folder = RemoteFolder(parse_address(f"s3://{bucket}/deltas"))
    for name, content in (("cut", data[:-1]), ("empty", b""), ("spoilt", data[:-1] + b"x"), ("whole", data)):
        folder.write(content, f"{name}.delta")
    folder.write(b"", "_SUCCESS")
    found = {delta.name: delta.error for delta in open_source(f"s3://{bucket}/deltas", tmp_path).scan()}
    assert found.pop("whole.delta") == ""
    assert [name for name, error in found.items() if error] == ["cut.delta", "empty.delta", "spoilt.delta"]
