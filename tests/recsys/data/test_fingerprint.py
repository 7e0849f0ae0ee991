"""The digest of data files changes with every byte that it reads, with their order, and with the settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from recsys.data import fingerprint as module
from recsys.data.fingerprint import fingerprint


def test_contents_order_and_settings_count(tmp_path: Path) -> None:
    a, b, same = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    a.write_bytes(b"1" * 100)
    b.write_bytes(b"1" * 99 + b"2")
    same.write_bytes(b"1" * 100)
    assert fingerprint([a]) == fingerprint([same])
    others = [
        fingerprint([b]),
        fingerprint([a, b]),
        fingerprint([b, a]),
        fingerprint([a], {"x": 1}),
        fingerprint([]),
    ]
    assert len({fingerprint([a]), *others}) == 6


def test_large_files_are_read_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WHOLE_BYTES", 1_000)
    monkeypatch.setattr(module, "_PART_BYTES", 10)
    monkeypatch.setattr(module, "_NUM_PARTS", 5)
    data = bytearray(5_000)
    path = tmp_path / "a"
    path.write_bytes(data)
    before = fingerprint([path])
    for place, is_read in ((0, True), (4_999, True), (1_250, True), (700, False)):
        changed = bytearray(data)
        changed[place] = 1
        path.write_bytes(changed)
        assert (fingerprint([path]) != before) == is_read
    path.write_bytes(data + b"\0")
    assert fingerprint([path]) != before
