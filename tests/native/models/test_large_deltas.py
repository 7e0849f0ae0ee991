"""The native runtime library reads deltas in parts: it finds damage in any of them, and writes every row.

Shape letters: N rows of a delta.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.configs import DataType
from serve.engine.reference.raw_request import RawRequest, RawSparse
from tests.native.models.test_model import assert_same
from tests.native.tool import NativeModel, assert_same_error, needs_tool
from tests.recsys.artifact.delta.deltas import read_plainly, rewrite_section, stored_tables, write_delta
from tests.support.helpers import bag

pytestmark = needs_tool
# Five parts of numbers: a part has 8 192.
NUM_ROWS, NUM_CHANGED = 60_000, 40_000
TYPES = {"floats": DataType.FP32, "halves": DataType.FP16, "bytes": DataType.INT8}
# Quiet NaNs in a row's first number, or in its scale.
NANS = {"floats": b"\0\0\xc0\x7f", "halves": b"\0\x7e", "bytes": b"\0\x7e"}
# The first row, both sides of the first two parts' ends, and the last row.
PLACES = (1, 8_191, 8_192, 16_383, 16_384, NUM_CHANGED - 1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LoadedArtifact]:
    """An artifact of three tables, and itself loaded."""
    path = tmp_path_factory.mktemp("large") / "artifact"
    tables = EmbeddingBagCollection([bag(name, NUM_ROWS, 4, [name]) for name in TYPES])
    export_model(tables, path, ExportConfig(table_data_types=TYPES))
    return path, load_artifact(path)


@pytest.fixture(scope="module")
def written(model: tuple[Path, LoadedArtifact], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound delta of every third row or two. Not to be written to."""
    path = tmp_path_factory.mktemp("large") / "new.delta"
    numbers = np.unique(np.linspace(0, NUM_ROWS - 1, NUM_CHANGED).astype(np.int64)).tolist()
    assert len(numbers) == NUM_CHANGED
    _, loaded = model
    write_delta(path, loaded.rows, dict.fromkeys(stored_tables(loaded.rows), numbers))
    return path


def test_every_row_is_written(native: NativeModel, model: tuple[Path, LoadedArtifact], written: Path) -> None:
    path, _ = model
    changed = load_artifact(path)
    apply(prepare(changed.rows, written))
    native.open(path)
    native.call("prepare", path=str(written))
    native.call("apply")
    for first in range(0, NUM_ROWS, 4_000):
        ids = np.arange(first, first + 4_000)
        lengths = np.ones(len(ids), "<i4").tobytes()
        sparse = [RawSparse(name, lengths, ids.astype("<i8").tobytes()) for name in TYPES]
        assert_same(native, changed, [RawRequest(num_rows=len(ids), sparse=sparse)])


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("place", PLACES)
def test_a_row_that_is_not_finite_is_found_anywhere(
    native: NativeModel,
    model: tuple[Path, LoadedArtifact],
    written: Path,
    tmp_path: Path,
    name: str,
    place: int,
) -> None:
    path, loaded = model
    delta = Path(shutil.copy(written, tmp_path / "new.delta"))
    rows = read_plainly(delta)[name][1].copy()
    rows[place, : len(NANS[name])] = list(NANS[name])
    rewrite_section(delta, list(TYPES).index(name), "rows", rows.tobytes())
    native.open(path)
    assert_same_error(lambda: native.call("prepare", path=str(delta)), lambda: prepare(loaded.rows, delta))


@pytest.mark.parametrize("place", PLACES)
def test_numbers_out_of_order_are_found_anywhere(
    native: NativeModel, model: tuple[Path, LoadedArtifact], written: Path, tmp_path: Path, place: int
) -> None:
    path, loaded = model
    delta = Path(shutil.copy(written, tmp_path / "new.delta"))
    numbers = np.array(read_plainly(delta)["halves"][0], "<i8")
    numbers[place] = numbers[place - 1]
    rewrite_section(delta, list(TYPES).index("halves"), "numbers", numbers.tobytes())
    native.open(path)
    assert_same_error(lambda: native.call("prepare", path=str(delta)), lambda: prepare(loaded.rows, delta))
