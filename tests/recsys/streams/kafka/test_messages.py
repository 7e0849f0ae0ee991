"""The messages of a delta, and every way in which one can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from recsys.streams.kafka.message import (
    DeltaParts,
    ForeignMessageError,
    MessageError,
    chunks_of,
    parts_of,
    read_message,
)
from tests.recsys.streams.deltas import ARTIFACT, write


def test_a_delta_is_cut_and_read_back(tmp_path: Path) -> None:
    digest = write(tmp_path / "a b.delta", 123.456, num_bytes=5000)
    parts = parts_of(tmp_path / "a b.delta", 1024)
    assert (parts.name, parts.digest, parts.created_s) == ("a_b.delta", digest, 123.456)
    whole = b""
    for number, (key, value, headers) in enumerate(chunks_of(tmp_path / "a b.delta", parts)):
        assert key == f"{ARTIFACT}/{ARTIFACT}/{number}"
        assert read_message(value, headers) == (parts, number)
        whole += value
    assert whole == (tmp_path / "a b.delta").read_bytes()


@pytest.fixture
def message(tmp_path: Path) -> tuple[bytes, dict[str, bytes]]:
    """The value and the headers of the first of several messages."""
    write(tmp_path / "a.delta", num_bytes=5000)
    _, value, headers = next(chunks_of(tmp_path / "a.delta", parts_of(tmp_path / "a.delta", 1024)))
    return value, dict(headers)


@pytest.mark.parametrize(
    ("header", "value", "expected"),
    [
        ("id", b"x", "header 'id': got 'x', expected 32 hexadecimal digits"),
        ("name", b"../a.delta", r"header 'name': got '\.\./a.delta', expected the name of a file"),
        ("name", b"\xff", "header 'name': got bytes that are no text"),
        ("artifact", b"", "header 'artifact': got '', expected 12"),
        ("base", b"0123456789AB", "header 'base'"),
        ("digest", None, "header 'digest'"),
        ("created_s", b"nan", "header 'created_s'"),
        ("created_s", b"-1", "header 'created_s'"),
        ("num_bytes", b"0", "header 'num_bytes'"),
        ("num_bytes", b"1e3", "header 'num_bytes': got '1e3', expected a whole number"),
        ("chunk_bytes", b"1099511627776", "header 'chunk_bytes': .* to 67108864"),
        ("index", b"-1", "header 'index'"),
        ("index", b"6", "header 'index': got '6', expected a whole number from 0 to 5"),
        ("index", b"5", "value: got 1024 bytes"),
        ("sha256", b"0", "its checksum does not match"),
    ],
)
def test_a_wrong_header_is_named(
    message: tuple[bytes, dict[str, bytes]], header: str, value: bytes | None, expected: str
) -> None:
    chunk, headers = message
    with pytest.raises(MessageError, match=expected):
        read_message(chunk, [*{**headers, header: value}.items()])


def test_a_chunk_that_was_changed_is_damaged(message: tuple[bytes, dict[str, bytes]]) -> None:
    chunk, headers = message
    with pytest.raises(MessageError, match="its checksum does not match"):
        read_message(bytes([chunk[0] ^ 1]) + chunk[1:], [*headers.items()])
    with pytest.raises(MessageError, match="got 0 bytes, expected 1024"):
        read_message(None, [*headers.items()])


def test_messages_of_others_and_of_newer_releases_are_told_apart(
    message: tuple[bytes, dict[str, bytes]],
) -> None:
    chunk, headers = message
    for other in (None, [], [("trace", None)]):
        with pytest.raises(ForeignMessageError, match="no header 'recsys-delta'"):
            read_message(chunk, other)
    with pytest.raises(ForeignMessageError, match="got '2', expected '1'; a newer release"):
        read_message(chunk, [*{**headers, "recsys-delta": b"2"}.items()])


def test_more_chunks_than_memory_has_room_for_are_refused(message: tuple[bytes, dict[str, bytes]]) -> None:
    chunk, headers = message
    with pytest.raises(
        MessageError, match="header 'chunk_bytes': got '1024', expected a whole number from 4194304"
    ):
        read_message(chunk, [*{**headers, "num_bytes": b"4398046511104"}.items()])


def test_parts_of_equal_fields_are_one_delta(tmp_path: Path) -> None:
    write(tmp_path / "a.delta", num_bytes=5000)
    one, other = (parts_of(tmp_path / "a.delta", size) for size in (1024, 2048))
    assert isinstance(one, DeltaParts)
    assert one == parts_of(tmp_path / "a.delta", 1024) != other
    assert (one.num_chunks, other.num_chunks) == (6, 3)
