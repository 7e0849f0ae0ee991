"""The native runtime library refuses damaged and foreign files as the Python one does: kind of error and field."""

from __future__ import annotations

import itertools
import shutil
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recsys.artifact.delta.apply import prepare
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.errors import ArtifactError
from recsys.kernels import operators
from tests.cases.fields import field_of
from tests.native.tool import NativeError, NativeModel, assert_same_error, needs_tool
from tests.recsys.artifact.conftest import artifact, delta, loaded, pristine, pristine_file, single
from tests.recsys.artifact.damage import flip, lie, manifest_of, write_manifest
from tests.recsys.artifact.delta.deltas import CHANGES, GOODS, USERS, header_of, write_delta
from tests.recsys.artifact.delta.deltas import lie as lie_header
from tests.recsys.artifact.delta.test_damage import DAMAGE
from tests.recsys.artifact.test_damage import DAMAGES, FOREIGN
from tests.recsys.artifact.test_fuzz import VALUES, _mutated, _paths

pytestmark = needs_tool
__all__ = ["artifact", "delta", "loaded", "pristine", "pristine_file", "single"]  # fixtures


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("verify", [True, False], ids=["checksums", "no checksums"])
def test_each_damage_is_the_same_error(native: NativeModel, artifact: Path, name: str, verify: bool) -> None:
    DAMAGES[name][0](artifact)
    if name == "skeleton flipped" and not verify and not operators.why_missing():
        # A program runs in its place.
        native.open(artifact, verify_checksums=False)
        load_artifact(artifact, verify_checksums=False)
        return
    assert_same_error(
        lambda: native.open(artifact, verify_checksums=verify),
        lambda: load_artifact(artifact, verify_checksums=verify),
    )


@pytest.mark.parametrize("name", FOREIGN)
def test_each_foreign_file_is_the_same_error(native: NativeModel, tmp_path: Path, name: str) -> None:
    FOREIGN[name](tmp_path / "x.pt")
    assert_same_error(lambda: native.open(tmp_path / "x.pt"), lambda: load_artifact(tmp_path / "x.pt"))


@pytest.mark.parametrize("table", [USERS, GOODS])
def test_a_flipped_byte_of_the_rows_is_the_same_error(
    native: NativeModel, artifact: Path, table: str
) -> None:
    block = next(b for b in load_artifact(artifact).manifest.layout.blocks if b.table == table)
    flip(artifact / "rows.bin", block.offset_bytes + 3)
    assert_same_error(lambda: native.open(artifact), lambda: load_artifact(artifact))
    if table == USERS:
        native.open(artifact, verify_checksums=False)
        return
    # The rows with stored answers read this one.
    assert_same_error(
        lambda: native.open(artifact, verify_checksums=False),
        lambda: load_artifact(artifact, verify_checksums=False),
        same_field=False,
    )


def test_damaged_headers_of_members_are_the_same_error(native: NativeModel, single: Path) -> None:
    whole = single.read_bytes()
    with zipfile.ZipFile(single) as file:
        starts = [member.header_offset for member in file.infolist()]
    # Signature, length of the name, and the name itself.
    for start, place in itertools.product(starts[:: max(1, len(starts) // 6)], (1, 26, 32)):
        single.write_bytes(whole)
        flip(single, start + place)
        assert_same_error(lambda: native.open(single), lambda: load_artifact(single), same_field=False)


@pytest.mark.parametrize("part", ["/code/", "/manifest.json", "/data/", "end"])
def test_a_damaged_single_file_is_the_same_error(native: NativeModel, single: Path, part: str) -> None:
    # Not in the directory before the end: its copies of names and sizes are compared in another order by each.
    at = -10
    if part != "end":
        with zipfile.ZipFile(single) as file:
            largest = max(
                (one for one in file.infolist() if part in one.filename), key=lambda one: one.compress_size
            )
        at = largest.header_offset + 100 + largest.compress_size // 2
    flip(single, at)
    try:
        load_artifact(single)
    except ValueError:
        assert_same_error(lambda: native.open(single), lambda: load_artifact(single), same_field=False)
    else:
        native.open(single)


def _set(path: list[Any], value: Any) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        data[path[-1]] = value

    return change


LIES: dict[str, Callable[[Any], None]] = {
    "no tables": _set(["tables"], []),
    "tables a text": _set(["tables"], "x"),
    "a name twice": lambda m: m["tables"].append(m["tables"][0]),
    "an unknown type": _set(["tables", 0, "data_type"], "INT3"),
    "a float for rows": _set(["tables", 0, "num_embeddings"], 50.0),
    "true for rows": _set(["tables", 0, "num_embeddings"], True),
    "rows of exabytes": _set(["tables", 0, "num_embeddings"], 2**62),
    "dim of exabytes": _set(["tables", 0, "embedding_dim"], 2**62),
    "sqnr a text": _set(["tables", 0, "sqnr_db"], "x"),
    "a list for sqnr": _set(["tables", 0, "sqnr_db"], [1, {"a": None, "b": True}]),
    "blocks overlap": _set(["rows", "blocks", 1, "offset_bytes"], 0),
    "a block off its place": _set(["rows", "blocks", 1, "offset_bytes"], 4097),
    "columns missing": _set(["rows", "blocks", 0, "columns"], [0, 8]),
    "columns descend": _set(["rows", "blocks", 0, "columns"], [8, 0]),
    "columns texts": _set(["rows", "blocks", 0, "columns"], ["0", "8"]),
    "a block of no table": _set(["rows", "blocks", 0, "table"], "it's"),
    "digest no digest": _set(["rows", "blocks", 0, "sha256"], "x" * 64),
    "size of rows": _set(["rows", "size_bytes"], 1),
    "rows nowhere": _set(["rows", "path"], None),
    "rows elsewhere": _set(["rows", "path"], "../rows.bin"),
    "a long name": _set(["rows", "path"], "ü" * 200),
    "no targets": _set(["targets"], []),
    "a target twice": lambda m: m["targets"].append(m["targets"][0]),
    "a target by another name": _set(["targets", 0, "name"], "cpu,cuda:0"),
    "an unknown device": _set(["targets", 0, "devices"], ["tpu"]),
    "a device that is no text": _set(["targets", 0, "devices"], [None]),
    "meta": _set(["targets", 0, "devices"], ["meta"]),
    "no device": _set(["targets", 0, "devices"], []),
    "plan a list": _set(["targets", 0, "plan"], []),
    "plan of none": _set(["targets", 0, "plan"], {}),
    "plan of texts": _set(["targets", 0, "plan"], {"a": "b"}),
    "an unknown skeleton": _set(["targets", 0, "skeleton"], "x.pt"),
    "rows' rank": lambda m: m["targets"][0]["rows"].update(dict.fromkeys(m["targets"][0]["rows"], 7)),
    "rows' other buffers": lambda m: (
        m["targets"][0].pop("program", None),
        m["targets"][0].update(rows={"x.y": 0}),
    ),
    "no ranking": _set(["targets", 0, "ranking"], {"skeleton": "target-0.pt", "rows": {}, "ranks": {}}),
    "dense dtype": _set(["targets", 0, "dense_dtype"], "float64"),
    "no inputs": lambda m: m["signature"].update(dense=[], sparse=[]),
    "no outputs": _set(["signature", "outputs"], []),
    "an unknown type of outputs": _set(["signature", "outputs", 0, "dtype"], "int32"),
    "no type of outputs": _set(["signature", "outputs", 0, "dtype"], None),
    "batch dims of rows": _set(["signature", "outputs", 0, "batch_dims"], [0, 1]),
    **{
        f"batch dims {dims}": lambda m, dims=dims: (  # type: ignore[misc]
            m["signature"].update(batch="request"),
            m["signature"]["outputs"][0].update(batch_dims=dims, shape=[]),
        )
        for dims in ([1], [-1], [0, 0], [1, 0], [], ["0"], 0, [True], [0.0], None)
    },
    "a shape of zero": _set(["signature", "outputs", 0, "shape"], [0]),
    "an input twice": lambda m: m["signature"]["dense"].append(m["signature"]["dense"][0]),
    "an unknown hash": _set(["signature", "sparse", 0, "strings"], "md5"),
    "an empty hash": _set(["signature", "sparse", 0, "strings"], ""),
    "a number for a hash": _set(["signature", "sparse", 0, "strings"], 64),
    "an unknown policy": _set(["signature", "sparse", 0, "tables", 0, "id_policy"], "x"),
    "another policy": _set(["signature", "sparse", 0, "tables", 0, "id_policy"], "zero"),
    "an unknown table": _set(["signature", "sparse", 0, "tables", 0, "name"], "x"),
    "another number of rows": _set(["signature", "sparse", 0, "tables", 0, "num_embeddings"], 7),
    "an unknown context": _set(["signature", "context"], ["x"]),
    "a context": _set(["signature", "context"], ["context"]),
    "no name": _set(["name"], ""),
    "versions a list": _set(["versions"], []),
    "no verification": lambda m: m.pop("verification"),
    "a skeleton's size": _set(["skeletons", 0, "size_bytes"], -1),
}


@pytest.mark.parametrize("name", LIES)
def test_each_lie_of_a_manifest_is_the_same_error(native: NativeModel, artifact: Path, name: str) -> None:
    lie(artifact, LIES[name])
    assert_same_error(lambda: native.open(artifact), lambda: load_artifact(artifact))


@pytest.mark.parametrize("target", ["tpu", "cuda:0,cuda:1"])
def test_a_target_that_is_not_to_be_had_is_the_same_error(
    native: NativeModel, artifact: Path, target: str
) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has what other machines lack")
    assert_same_error(
        lambda: native.open(artifact, target=target), lambda: load_artifact(artifact, target=target)
    )
    with pytest.raises(NativeError, match="target"):
        native.call("check", path=str(artifact), target=target)


@pytest.mark.parametrize("name", DAMAGE)
def test_each_damage_of_a_delta_is_the_same_error(
    native: NativeModel, pristine: Path, loaded: LoadedArtifact, delta: Path, name: str
) -> None:
    native.open(pristine, target="cpu")
    DAMAGE[name][0](delta)
    assert_same_error(lambda: native.call("prepare", path=str(delta)), lambda: prepare(loaded.rows, delta))
    assert native.call("state") == {"rows_state": loaded.rows.state}


def _assert_alike(read_native: Callable[[], object], read_python: Callable[[], object]) -> None:
    """Check that both languages take what they read, or refuse it by the same field."""
    expected: tuple[type, str] | None = None
    found: tuple[type, str] | None = None
    try:
        read_python()
    except ArtifactError as error:
        expected = (type(error), field_of(str(error)))
    try:
        read_native()
    except NativeError as error:
        if "not readable as JSON" in str(error):
            return  # Numbers and texts that JSON does not know, and Python does.
        found = (error.kind, field_of(str(error)))
    assert found == expected


def _places(data: Any) -> list[tuple[Any, ...]]:
    """Return the places of a manifest or header that differ by more than the index in a list."""
    kinds = {tuple("[]" if isinstance(step, int) else step for step in path): path for path in _paths(data)}
    return [
        path for path in kinds.values() if path and not (path[0] in ("answers", "examples") and len(path) > 3)
    ]


EVERYWHERE = pytest.mark.parametrize("value", ["delete", None, [], 2**70, "x"], ids=repr)


@EVERYWHERE
def test_each_place_of_a_manifest_is_read_in_the_same_order(
    native: NativeModel, pristine: Path, artifact: Path, value: Any
) -> None:
    for place in _places(manifest_of(pristine)):
        kind = "delete" if value == "delete" else "replace"
        write_manifest(artifact, _mutated(manifest_of(pristine), place, kind, value))
        _assert_alike(lambda: native.open(artifact), lambda: load_artifact(artifact))


@EVERYWHERE
def test_each_place_of_a_header_of_a_delta_is_read_in_the_same_order(
    native: NativeModel, pristine: Path, loaded: LoadedArtifact, tmp_path: Path, value: Any
) -> None:
    native.open(pristine, target="cpu")
    path = tmp_path / "new.delta"
    write_delta(path, loaded.rows, CHANGES, with_dense=True)
    whole = path.read_bytes()
    for place in _places(header_of(path)):
        kind = "delete" if value == "delete" else "replace"
        path.write_bytes(whole)
        lie_header(path, lambda header, place=place, kind=kind: _mutated(header, place, kind, value))
        _assert_alike(lambda: native.call("prepare", path=str(path)), lambda: prepare(loaded.rows, path))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.integers(0, 10_000),
    kind=st.sampled_from(["replace", "replace", "delete", "twice", "nudge"]),
    value=VALUES,
)
def test_a_manifest_with_anything_in_any_place_is_the_same_error(
    native: NativeModel, pristine: Path, tmp_path: Path, at: int, kind: str, value: Any
) -> None:
    path = tmp_path / "ranker"
    if not path.exists():
        shutil.copytree(pristine, path)
    shutil.copy(pristine / "manifest.json", path)
    places = _paths(manifest_of(path))
    with suppress(TypeError):
        write_manifest(path, _mutated(manifest_of(path), places[at % len(places)], kind, value))
    _assert_alike(lambda: native.open(path), lambda: load_artifact(path))
