"""Listing a folder of deltas."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import NoReturn

import pytest

from recsys.artifact.delta.file import DeltaWriter
from recsys.artifact.delta.header import DeltaHeader
from recsys.streams.folder import FolderSource
from recsys.streams.interface import StreamError
from recsys.streams.opening import open_sink

ARTIFACT = "0123456789ab"


def write(path: Path, created_s: float, base: str = ARTIFACT) -> None:
    """A delta of no rows."""
    DeltaWriter(path, DeltaHeader(model="m", artifact=ARTIFACT, base=base, created_s=created_s)).finish()


def test_deltas_are_listed_by_age_and_other_files_are_not(tmp_path: Path) -> None:
    write(tmp_path / "a.delta", 200.0)
    write(tmp_path / "b.delta", 100.5)
    write(tmp_path / ".c.delta", 50.0)
    write(tmp_path / ".d.delta.0123.partial", 50.0)
    (tmp_path / "_SUCCESS").touch()
    found = FolderSource(tmp_path).scan()
    assert [(delta.name, delta.created_s) for delta in found] == [("b.delta", 100.5), ("a.delta", 200.0)]
    assert {(delta.artifact, delta.base, delta.error) for delta in found} == {(ARTIFACT, ARTIFACT, "")}
    assert len({delta.digest for delta in found}) == 2


def test_a_header_without_a_time_gets_that_of_its_file(tmp_path: Path) -> None:
    write(tmp_path / "a.delta", 0.0)
    os.utime(tmp_path / "a.delta", (7000, 8000))
    assert FolderSource(tmp_path).scan()[0].created_s == 8000


def test_a_file_that_is_being_copied_is_no_delta_until_it_is_whole(tmp_path: Path) -> None:
    write(tmp_path / "whole", 100.0)
    data = (tmp_path / "whole").read_bytes()
    folder, path = FolderSource(tmp_path), tmp_path / "a.delta"
    for size in (0, 10, 64, len(data) - 1):
        path.write_bytes(data[:size])
        (delta,) = folder.scan()
        assert delta.error
        assert not delta.digest
        assert str(tmp_path) not in delta.error
    path.write_bytes(data)
    assert folder.scan()[0].digest


def test_entries_that_are_no_files_are_passed_over_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a.delta", 100.0)
    (tmp_path / "loop.delta").symlink_to(tmp_path / "loop.delta")
    (tmp_path / "gone.delta").symlink_to(tmp_path / "nothing")
    (tmp_path / "zero.delta").symlink_to("/dev/zero")
    (tmp_path / "folder.delta").mkdir()
    os.mkfifo(tmp_path / "pipe.delta")
    folder = FolderSource(tmp_path)
    for _ in range(2):
        assert [delta.name for delta in folder.scan()] == ["a.delta"]
    named = sorted(record.message.split(" ")[1] for record in caplog.records)
    assert named == ["folder.delta", "loop.delta", "pipe.delta", "zero.delta"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "memory.delta").symlink_to("/proc/self/mem")
    (delta,) = FolderSource(tmp_path).scan()
    assert delta.error


def test_a_file_that_cannot_be_opened_now_is_read_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.delta", 100.0)
    folder = FolderSource(tmp_path)
    with monkeypatch.context() as limits:
        limits.setattr(Path, "open", too_many_files)
        (delta,) = folder.scan()
        assert delta.error == "Too many open files"
    (delta,) = folder.scan()
    assert delta.digest


def too_many_files(path: Path, mode: str) -> NoReturn:
    del path, mode
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_names_that_would_break_a_log_are_passed_over_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [
        "line\nERROR all is lost.delta",
        "escape\x1b[2J.delta",
        os.fsdecode(b"\xff.delta"),
        "right\u202e.delta",
    ]
    for name in names:
        write(tmp_path / name, 100.0)
    write(tmp_path / "a b.delta", 100.0)
    folder = FolderSource(tmp_path)
    for _ in range(2):
        assert [delta.name for delta in folder.scan()] == ["a b.delta"]
    assert sorted(record.message for record in caplog.records) == sorted(
        f"deltas: {name!a} is passed over: its name has characters that cannot be printed; rename it"
        for name in names
    )


def test_partial_files_of_a_publisher_that_was_killed_are_removed_after_an_hour(tmp_path: Path) -> None:
    write(tmp_path / "a.delta", 100.0)
    stream = tmp_path / "stream"
    stream.mkdir()
    for name, age_s in (("old", 4000), ("new", 3000)):
        path = stream / f".{name}.delta.0123456789abcdef.partial"
        path.touch()
        os.utime(path, (time.time() - age_s,) * 2)
    with open_sink(stream) as sink:
        sink.publish(tmp_path / "a.delta")
    assert sorted(path.name for path in stream.iterdir()) == [
        ".new.delta.0123456789abcdef.partial",
        "a.delta",
    ]


def test_headers_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.delta", 100.0)
    folder = FolderSource(tmp_path)
    first = folder.scan()
    monkeypatch.setattr("recsys.streams.folder.DeltaFile", None)
    assert folder.scan() == first


def test_a_folder_that_is_not_there_is_empty_and_a_file_is_no_folder(tmp_path: Path) -> None:
    assert FolderSource(tmp_path / "later").scan() == []
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        FolderSource(tmp_path / "file").scan()


def test_a_name_that_another_delta_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "stream").mkdir()
    write(tmp_path / "a.delta", 100.0)
    write(tmp_path / "stream" / "a.delta", 200.0)
    with (
        open_sink(tmp_path / "stream") as sink,
        pytest.raises(StreamError, match="the name of another delta"),
    ):
        sink.publish(tmp_path / "a.delta")
    assert FolderSource(tmp_path / "stream").scan()[0].created_s == 200.0
