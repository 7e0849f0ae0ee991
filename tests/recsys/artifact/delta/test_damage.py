"""Every way to damage a delta is one named error, and random damage never does harm.

Shape letters: N rows of a delta, R rows.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recsys.artifact.delta.apply import PreparedDelta, prepare
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.errors import (
    ArtifactError,
    ArtifactNotFoundError,
    ChecksumError,
    DeltaError,
    ForeignFileError,
    ManifestError,
    NewerVersionError,
    PartSizeError,
)
from tests.recsys.artifact.damage import flip, truncate
from tests.recsys.artifact.delta.deltas import (
    CHANGES,
    USERS,
    all_rows,
    header_of,
    header_text,
    lie,
    rewrite_dense,
    rewrite_section,
    set_in,
    set_in_dense,
    write_delta,
    write_header,
)


def patched(offset: int, data: bytes) -> Callable[[Path], None]:
    """Other bytes at an offset."""

    def change(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[offset : offset + len(data)] = data
        path.write_bytes(content)

    return change


def numbers(*values: int) -> Callable[[Path], None]:
    """Other numbers of rows, with the digest that fits."""
    return lambda path: rewrite_section(path, 0, "numbers", np.array(values, "<i8").tobytes())


def lied(change: Callable[[Any], object]) -> Callable[[Path], None]:
    return lambda path: lie(path, change)


BIAS = "model.layer.bias"
NAN_SCALE = struct.pack("<ee", float("nan"), 0) + bytes(16)
DAMAGE: dict[str, tuple[Callable[[Path], object], type[ArtifactError], str]] = {
    "nothing there": (Path.unlink, ArtifactNotFoundError, "delta: got 'new.delta', which does not exist"),
    "empty": (lambda p: truncate(p, 0), ForeignFileError, "'new.delta' is no delta"),
    "garbage": (lambda p: p.write_bytes(bytes(range(256)) * 9), ForeignFileError, "is no delta"),
    "a manifest": (lambda p: p.write_text('{"format": "recsys-artifact"}'), ForeignFileError, "is no delta"),
    "a zip file": (lambda p: p.write_bytes(b"PK\x03\x04" + bytes(100)), ForeignFileError, "is no delta"),
    "line ends changed": (
        lambda p: p.write_bytes(p.read_bytes().replace(b"\r\n", b"\n")),
        ForeignFileError,
        "does not begin as one",
    ),
    "cut in the magic": (lambda p: truncate(p, 5), PartSizeError, "got 5 bytes, expected 64 at least"),
    "cut in the preamble": (lambda p: truncate(p, 63), PartSizeError, "got 63 bytes"),
    "cut in the rows": (lambda p: truncate(p, 100), PartSizeError, "got 100 bytes, expected"),
    "cut in the header": (lambda p: truncate(p, -1), PartSizeError, "bytes, expected"),
    "bytes behind": (lambda p: p.write_bytes(p.read_bytes() + b"\n"), PartSizeError, "bytes, expected"),
    "never finished": (patched(16, bytes(48)), ManifestError, "never finished"),
    "header of exabytes": (patched(24, b"\xff" * 8), ManifestError, "first 64 bytes are damaged"),
    "header in the preamble": (
        patched(16, struct.pack("<Q", 8)),
        ManifestError,
        "first 64 bytes are damaged",
    ),
    "header's digest": (patched(40, b"\0\1\2\3"), ChecksumError, "its header's checksum"),
    "a byte of the header": (lambda p: flip(p, -10), ChecksumError, "its header's checksum"),
    "a byte of a row": (lambda p: flip(p, 64), ChecksumError, f"table {USERS!r}: the checksum"),
    "header no JSON": (lambda p: write_header(p, b"{"), ManifestError, "not readable as JSON"),
    "header no text": (lambda p: write_header(p, b"\xff\xfe{}"), ManifestError, "not readable as JSON"),
    "header deep": (lambda p: write_header(p, b"[" * 100_000), ManifestError, "not readable as JSON"),
    "header a list": (lambda p: write_header(p, b"[]"), ForeignFileError, "its format is not"),
    "another format": (
        lied(lambda h: h.update(format="x")),
        ForeignFileError,
        "its format is not 'recsys-delta'",
    ),
    "newer": (
        lied(lambda h: h.update(format_version=4)),
        NewerVersionError,
        "got format version 4, expected at most 3",
    ),
    "replaces a text": (lied(lambda h: h.update(replaces="x")), ManifestError, "delta.replaces: got"),
    "replaces no digest": (
        lied(lambda h: h.update(replaces=["x"])),
        ManifestError,
        "delta.replaces[0].digest: got 'x', expected 12 hexadecimal digits",
    ),
    "replaces one twice": (
        lied(lambda h: h.update(replaces=["a" * 12] * 2)),
        ManifestError,
        "delta.replaces: got ['aaaaaaaaaaaa'] more than once",
    ),
    "version a text": (lied(lambda h: h.update(format_version="1")), ManifestError, "delta.format_version"),
    "no artifact": (lied(lambda h: h.pop("artifact")), ManifestError, "delta.artifact: missing"),
    "artifact a number": (lied(lambda h: h.update(artifact=7)), ManifestError, "delta.artifact: got '7'"),
    "base too short": (lied(lambda h: h.update(base="abc")), ManifestError, "12 hexadecimal digits"),
    "made before the epoch": (
        lied(lambda h: h.update(created_s=-1)),
        ManifestError,
        "delta.created_s: got '-1', expected seconds since the epoch",
    ),
    "made at no time": (lied(lambda h: h.update(created_s=True)), ManifestError, "delta.created_s: got"),
    "another base": (lied(lambda h: h.update(base="0" * 12)), DeltaError, "delta.base: got '000000000000'"),
    "another artifact": (lied(lambda h: h.update(artifact="0" * 12)), DeltaError, "delta.artifact: got"),
    "tables an object": (lied(lambda h: h.update(tables={})), ManifestError, "delta.tables: got"),
    "a table twice": (
        lied(lambda h: h["tables"][1].update(name=USERS)),
        ManifestError,
        "delta.tables: got ['plain.users'] more than once",
    ),
    "unknown table": (
        lied(set_in(0, "name", "x")),
        ManifestError,
        "delta.tables[0].name: got 'x', expected one of",
    ),
    "other rows": (
        lied(set_in(0, "num_embeddings", 51)),
        ManifestError,
        "num_embeddings: got '51', expected 50",
    ),
    "other dim of as many bytes": (
        lied(set_in(0, "embedding_dim", 15)),
        ManifestError,
        "embedding_dim: got '15', expected 16",
    ),
    "other type": (
        lied(set_in(2, "data_type", "INT4")),
        ManifestError,
        "data_type: got 'INT4', expected",
    ),
    "type of no rows": (lied(set_in(0, "data_type", "BF16")), ManifestError, "expected one of FP32"),
    "no rows": (lied(set_in(0, "num_rows", 0)), ManifestError, "num_rows: got '0'"),
    "more rows than the table": (
        lied(lambda h: h["tables"][0].update(num_rows=3, num_embeddings=2)),
        ManifestError,
        "num_rows: got '3', expected at most the table's 2",
    ),
    "rows of exabytes": (lied(set_in(0, "num_rows", 2**62)), ManifestError, "rows.offset_bytes"),
    "dim of exabytes": (lied(set_in(0, "embedding_dim", 2**62)), ManifestError, "rows.offset_bytes"),
    "a section in the preamble": (
        lied(lambda h: h["tables"][0]["rows"].update(offset_bytes=0)),
        ManifestError,
        "delta.tables[0].rows.offset_bytes: got '0', expected a multiple of 64 from 64 on",
    ),
    "a section over another": (
        lied(lambda h: h["tables"][0]["numbers"].update(offset_bytes=64)),
        ManifestError,
        "delta.tables[0].numbers.offset_bytes: got '64'",
    ),
    "a section off its place": (
        lied(lambda h: h["tables"][0]["rows"].update(offset_bytes=65)),
        ManifestError,
        "got '65', expected a multiple of 64",
    ),
    "a section behind the end": (
        lied(lambda h: h["tables"][2]["numbers"].update(offset_bytes=1 << 20)),
        ManifestError,
        "numbers.offset_bytes: got '1048576'",
    ),
    "a section that is a text": (
        lied(set_in(0, "rows", "x")),
        ManifestError,
        "delta.tables[0].rows.offset_bytes: missing",
    ),
    "no section": (
        lied(lambda h: h["tables"][0].pop("rows")),
        ManifestError,
        "delta.tables[0].rows: missing",
    ),
    "digest of a section": (
        lied(lambda h: h["tables"][0]["rows"].update(sha256="0" * 64)),
        ChecksumError,
        f"table {USERS!r}: the checksum",
    ),
    "digest no digest": (
        lied(lambda h: h["tables"][0]["rows"].update(sha256="x" * 64)),
        ManifestError,
        "rows.sha256: got",
    ),
    "a negative number": (numbers(-1, 7, 49), ManifestError, "got numbers of rows from -1 to 49"),
    "a number behind the table": (numbers(0, 7, 50), ManifestError, "expected ascending ones from 0 to 49"),
    "numbers that descend": (numbers(7, 0, 49), ManifestError, "expected ascending ones"),
    "a number twice": (numbers(7, 7, 49), ManifestError, "each once"),
    "a number of 64 bits": (numbers(0, 7, 2**63 - 1), ManifestError, "expected ascending ones"),
    "the row of zeros": (
        lambda p: rewrite_section(p, 1, "numbers", np.array([2, 3, 4, 30], "<i8").tobytes()),
        ManifestError,
        "expected ascending ones from 0 to 29",
    ),
    "a byte of a dense weight": (
        lambda p: flip(p, header_of(p)["dense"][0]["values"]["offset_bytes"]),
        ChecksumError,
        f"dense weight {BIAS!r}: the checksum does not match",
    ),
    "dense weights an object": (lied(lambda h: h.update(dense={})), ManifestError, "delta.dense: got"),
    "a dense weight twice": (
        lied(set_in_dense(1, "name", BIAS)),
        ManifestError,
        f"delta.dense: got [{BIAS!r}] more than once",
    ),
    "unknown dense weight": (
        lied(set_in_dense(0, "name", "x")),
        ManifestError,
        "delta.dense[0].name: got 'x', expected the path of a dense weight of the artifact",
    ),
    "a tensor of a collection": (
        lied(set_in_dense(0, "name", "model.plain.lookups.0.offsets_bytes")),
        ManifestError,
        "expected the path of a dense weight of the artifact",
    ),
    "other type of a dense weight": (
        lied(set_in_dense(0, "dtype", "int32")),
        ManifestError,
        f"delta.dense[0].dtype: got 'int32', expected float32, as dense weight {BIAS!r} has it",
    ),
    "no type of dense weights": (
        lied(set_in_dense(0, "dtype", "float8")),
        ManifestError,
        "dtype: got 'float8', expected one of float64, float32",
    ),
    "other shape of a dense weight": (
        lied(set_in_dense(1, "shape", [3, 72])),
        ManifestError,
        "delta.dense[1].shape: got '[3, 72]', expected [72, 3], as dense weight",
    ),
    "a dense weight of many bytes": (
        lied(set_in_dense(1, "shape", [2**30, 2**30])),
        ManifestError,
        "delta.dense[1].values.offset_bytes: got",
    ),
    "a dense weight of huge dimensions": (
        lied(set_in_dense(1, "shape", [2**48])),
        ManifestError,
        "delta.dense[1].shape: got '[281474976710656]', expected at most 16 dimensions below 2**48",
    ),
    "no numbers of a dense weight": (
        lied(lambda h: h["dense"][0].pop("values")),
        ManifestError,
        "delta.dense[0].values: missing",
    ),
    "a dense weight that is not finite": (
        lambda p: rewrite_dense(p, 0, np.full(72, np.inf, "<f4").tobytes()),
        ManifestError,
        f"dense weight {BIAS!r}: got a number that is not finite",
    ),
    "a row that is not finite": (
        lambda p: rewrite_section(p, 0, "rows", NAN_SCALE * 3),
        ManifestError,
        "got a row that is not finite",
    ),
}


@pytest.mark.parametrize(("damage", "kind", "text"), DAMAGE.values(), ids=DAMAGE)
def test_damage(
    loaded: LoadedArtifact,
    delta: Path,
    damage: Callable[[Path], object],
    kind: type[ArtifactError],
    text: str,
) -> None:
    before, graphs = all_rows(loaded), loaded.graphs.calls
    damage(delta)
    with pytest.raises(ArtifactError) as caught:
        prepare(loaded.rows, delta)
    assert type(caught.value) is kind
    assert text in str(caught.value)
    assert str(delta.parent) not in str(caught.value)
    assert torch.equal(all_rows(loaded)[0], before[0])
    assert loaded.graphs.calls is graphs


def test_a_directory_is_no_delta(loaded: LoadedArtifact, tmp_path: Path) -> None:
    with pytest.raises(ForeignFileError, match="is no file"):
        prepare(loaded.rows, tmp_path)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from([2**31, 2**63 - 1, 2**63, -(2**63), 10**400, 1.5, float("nan"), float("inf")]),
    st.sampled_from(["", USERS, "INT4", "FP16", "\ud800", "0" * 12, "0" * 64]),
    st.sampled_from([[], {}, [[]], [0], {"a": 0}, [{}]]),
)


def _places(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    steps = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [at, *(place for key, value in steps for place in _places(value, (*at, key)))]


@pytest.fixture(scope="module")
def shared(
    pristine: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LoadedArtifact, Path, PreparedDelta]:
    """A model, a sound delta for it, and that delta prepared."""
    artifact = load_artifact(pristine, target="cpu")
    path = tmp_path_factory.mktemp("deltas") / "d"
    write_delta(path, artifact.rows, CHANGES, with_dense=True)
    return artifact, path, prepare(artifact.rows, path)


def equal_or_error(
    artifact: LoadedArtifact, path: Path, sound: PreparedDelta, left: set[str] | None = None
) -> None:
    """A delta is refused by name, or it puts the same rows in the same places.

    Args:
        artifact: what it is for.
        path: the delta.
        sound: what it was before.
        left: the tables that it still holds; all if None.
    """
    with suppress(ArtifactError):
        found = prepare(artifact.rows, path)
        assert found.num_rows == {t: n for t, n in sound.num_rows.items() if left is None or t in left}
        expected = {change.target.data_ptr(): change for change in sound.changes}
        for one in found.changes:
            other = expected[one.target.data_ptr()]
            assert torch.equal(one.places, other.places)
            assert torch.equal(one.rows, other.rows)
        for name, weight in found.dense.items():
            assert weight is not None
            assert torch.equal(weight, sound.dense[name])  # type: ignore[arg-type]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 2**16), delete=st.booleans(), value=VALUES)
def test_headers_that_lie(
    shared: tuple[LoadedArtifact, Path, PreparedDelta], tmp_path: Path, at: int, delete: bool, value: Any
) -> None:
    artifact, path, sound = shared
    copy = Path(shutil.copy(path, tmp_path / "copy"))
    header = json.loads(header_text(path))
    places = _places(header)[1:]
    place = places[at % len(places)]
    owner = header
    for step in place[:-1]:
        owner = owner[step]
    if delete:
        del owner[place[-1]]
    else:
        owner[place[-1]] = value
    write_header(copy, json.dumps(header).encode())
    # A table that is taken out leaves a delta of the others; no tables are a delta of nothing.
    left = None
    if place == ("tables",):
        left = set()
    elif len(place) == 2 and delete:
        left = {table["name"] for table in header["tables"]}
    equal_or_error(artifact, copy, sound, left)


@pytest.mark.parametrize("seed", range(150))
def test_random_damage(shared: tuple[LoadedArtifact, Path, PreparedDelta], tmp_path: Path, seed: int) -> None:
    artifact, path, sound = shared
    draw = random.Random(seed)
    content = bytearray(path.read_bytes())
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(content))
        match draw.randrange(4):
            case 0:
                content[at] = draw.randrange(256)
            case 1:
                del content[at:]
                content = content or bytearray(1)
            case 2:
                content[at:at] = draw.randbytes(draw.randint(1, 70))
            case 3:
                del content[at : at + draw.randint(1, 70)]
                content = content or bytearray(1)
    (tmp_path / "damaged").write_bytes(content)
    equal_or_error(artifact, tmp_path / "damaged", sound)
