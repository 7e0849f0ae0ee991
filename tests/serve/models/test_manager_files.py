"""Files of loaded versions that are written to in place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from serve.errors import NotReadyError
from serve.models.repository import Repository
from tests.support.serve.managing import SAMPLE, asserts_answer, managing, run


@pytest.fixture
def copied(root: Path, artifacts: dict[str, Path]) -> Path:
    """A repository whose files are its own."""
    shutil.rmtree(root / "small", ignore_errors=True)
    for version in ("1", "2"):
        shutil.copytree(artifacts[version], root / "small" / version)
    return root


def _touch(rows: Path) -> None:
    os.utime(rows, (5, 5))


def _write_again(rows: Path) -> None:
    rows.write_bytes(rows.read_bytes())


def _change(rows: Path) -> None:
    data = bytearray(rows.read_bytes())
    data[7] ^= 255
    rows.write_bytes(data)
    os.utime(rows, (6, 6))


@pytest.mark.parametrize("change", [_touch, _write_again])
def test_the_same_bytes_go_on_being_served(
    copied: Path, artifacts: dict[str, Path], change: Callable[[Path], None]
) -> None:
    async def scenario() -> None:
        async with managing(Repository(copied)) as world:
            await world.manager.rescan()
            change(copied / "small" / "2" / "rows.bin")
            await world.manager.check_files()
            assert world.states() == {"1": "available", "2": "ready"}
            await asserts_answer(world, "2", artifacts["2"])
            assert world.hosting.loads == ["2"]

    run(scenario())


def test_other_bytes_are_refused_once_and_the_version_before_answers(
    copied: Path, artifacts: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        rows = copied / "small" / "2" / "rows.bin"
        whole = rows.read_bytes()
        async with managing(Repository(copied)) as world:
            await world.manager.rescan()
            _change(rows)
            for _ in range(3):
                await world.manager.check_files()
            await world.settle()
            assert world.states() == {"1": "ready", "2": "failed"}
            assert world.serving() == "1"
            (status,) = world.manager.statuses()
            assert "it was written to while it was in use" in status.versions[1].reason
            await asserts_answer(world, "1", artifacts["1"])
            # Put back, it is loaded again at the next scan.
            rows.write_bytes(whole)
            await world.manager.rescan()
            assert world.serving() == "2"
            await asserts_answer(world, "2", artifacts["2"])

    run(scenario())
    assert sum("version 2 answers no more" in record.message for record in caplog.records) == 1


def test_without_another_version_the_model_is_not_ready(copied: Path) -> None:
    async def scenario() -> None:
        shutil.rmtree(copied / "small" / "1")
        async with managing(Repository(copied)) as world:
            await world.manager.rescan()
            _change(copied / "small" / "2" / "rows.bin")
            await world.manager.check_files()
            assert world.manager.is_ready()  # It may be being written.
            await world.manager.check_files()
            assert not world.manager.is_ready()
            with pytest.raises(NotReadyError):
                await world.predict(SAMPLE)

    run(scenario())
