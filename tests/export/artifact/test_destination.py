"""Where artifacts go: whole or not at all; nothing foreign is ever replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from export.artifact.destination import Destination
from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.load import load_artifact
from recsys.artifact.manifest_file import MANIFEST_NAME
from recsys.errors import ExportError
from tests.support.models.export_models import CopyCase, bare


def _contents(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    return {str(file.relative_to(path.parent)): file.read_bytes() for file in files if file.is_file()}


def _write(destination: Destination, text: str = "{}") -> None:
    (destination.work / MANIFEST_NAME).write_text(text)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_after_a_failure(tmp_path: Path, error: type[BaseException]) -> None:
    def fail(destination: Destination) -> None:
        _write(destination)
        raise error

    with pytest.raises(error), Destination(tmp_path / "a", single_file=False, overwrite=False) as destination:
        fail(destination)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_there_before_the_commit(tmp_path: Path) -> None:
    with Destination(tmp_path / "deep" / "a", single_file=False, overwrite=False) as destination:
        _write(destination)
        assert not (tmp_path / "deep" / "a").exists()
        assert destination.commit() == 2
        assert [p.name for p in (tmp_path / "deep" / "a").iterdir()] == [MANIFEST_NAME]
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["a"]


@pytest.mark.parametrize("single_file", [False, True], ids=["directory", "single file"])
def test_an_artifact_is_kept_unless_forced(tmp_path: Path, single_file: bool) -> None:
    path = tmp_path / "a"
    config = ExportConfig(name="first", single_file=single_file)
    export_model(bare(), path, config)
    before = _contents(path)
    with pytest.raises(ExportError, match="out: 'a' exists; choose another name or pass --force"):
        export_model(bare(), path, ExportConfig(name="second", single_file=single_file))
    assert _contents(path) == before
    export_model(bare(), path, ExportConfig(name="third", single_file=single_file, overwrite=True))
    assert load_artifact(path).manifest.name == "third"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_directory_replaces_a_single_file_and_back(tmp_path: Path) -> None:
    for single_file in (True, False, True):
        export_model(bare(), tmp_path / "a", ExportConfig(single_file=single_file, overwrite=True))
        assert (tmp_path / "a").is_file() == single_file
        load_artifact(tmp_path / "a")


def test_a_failed_export_keeps_the_artifact_that_it_was_to_replace(
    tmp_path: Path, copy_case: CopyCase
) -> None:
    copy_case("bare collection", tmp_path / "a")
    before = _contents(tmp_path / "a")
    with pytest.raises(ExportError):
        export_model(bare(), tmp_path / "a", ExportConfig(overwrite=True, dense_widths={"x": 1}))
    assert _contents(tmp_path / "a") == before
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    "kind", ["directory", "empty directory", "file", "other manifest", "truncated manifest"]
)
def test_what_is_foreign_is_never_replaced(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    if kind == "file":
        path.write_bytes(b"precious")
    else:
        path.mkdir()
        if kind == "directory":
            (path / "thesis.tex").write_text("precious")
        if kind == "other manifest":
            (path / MANIFEST_NAME).write_text('{"name": "a web app"}')
        if kind == "truncated manifest":
            (path / MANIFEST_NAME).write_text('{"format": "recsys-art')
    before = _contents(path)
    with pytest.raises(ExportError, match="out: 'a' exists and is no artifact; it is not replaced"):
        export_model(bare(), path, ExportConfig(overwrite=True))
    assert _contents(path) == before
    assert path.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_an_artifact_with_foreign_files_in_it_is_not_replaced(tmp_path: Path, copy_case: CopyCase) -> None:
    copy_case("bare collection", tmp_path / "a")
    (tmp_path / "a" / "notes.txt").write_text("precious")
    with pytest.raises(
        ExportError, match=r"out: 'a' also holds \['notes.txt'\], which is no part of the artifact"
    ):
        export_model(bare(), tmp_path / "a", ExportConfig(overwrite=True))
    assert (tmp_path / "a" / "notes.txt").read_text() == "precious"


def test_the_old_artifact_comes_back_where_the_new_one_cannot_take_its_place(
    tmp_path: Path, copy_case: CopyCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_case("bare collection", tmp_path / "a")
    before = _contents(tmp_path / "a")
    rename = os.rename

    def failing(source: object, target: object, **options: object) -> None:
        if str(source).endswith("/artifact") and str(target) == str(tmp_path / "a"):
            raise OSError("no space left on device")
        rename(source, target, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OSError, match="no space left"):
        export_model(bare(), tmp_path / "a", ExportConfig(overwrite=True))
    assert _contents(tmp_path / "a") == before
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_what_appears_during_the_export_is_not_replaced_unasked(tmp_path: Path) -> None:
    with Destination(tmp_path / "a", single_file=False, overwrite=False) as destination:
        _write(destination)
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "other").write_text("precious")
        with pytest.raises(ExportError, match="out: 'a' exists"):
            destination.commit()
    assert _contents(tmp_path / "a") == {"a/other": b"precious"}


def test_others_can_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        export_model(bare(), tmp_path / "a")
        export_model(bare(), tmp_path / "a.pt", ExportConfig(single_file=True))
    finally:
        os.umask(old)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o755
    for file in [*(tmp_path / "a").iterdir(), tmp_path / "a.pt"]:
        assert file.stat().st_mode & 0o777 == 0o644
