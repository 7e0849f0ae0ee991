"""Random damage: whatever is done to an artifact, it is a named error, or it predicts as before."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.artifact.manifest_file import MANIFEST_NAME
from recsys.artifact.parts import ROWS_NAME
from recsys.errors import ArtifactError
from tests.recsys.artifact.damage import answers, lie, manifest_of, same

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from([2**31, 2**63 - 1, 2**63, -(2**63), 10**400, 1.5, float("nan"), float("inf")]),
    st.sampled_from(
        [
            "",
            "cpu",
            "cuda:0",
            "meta",
            "rows.bin",
            "target-1.pt",
            "../x",
            "\ud800",
            "INT4",
            "row_wise",
            "0" * 64,
        ]
    ),
    st.sampled_from([[], {}, [[]], [0], [0, 1], {"a": 0}, [{}]]),
)


def _paths(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in plain data, all of it."""
    steps = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [at, *(path for key, value in steps for path in _paths(value, (*at, key)))]


def _mutated(data: Any, path: tuple[Any, ...], kind: str, value: Any) -> Any:
    if not path:
        return data
    *parents, last = path
    owner = data
    for step in parents:
        owner = owner[step]
    if kind == "delete":
        del owner[last]
    elif kind == "twice" and isinstance(owner, list):
        owner.insert(last, owner[last])
    elif kind == "nudge" and type(owner[last]) is int:
        owner[last] += 1
    else:
        owner[last] = value
    return data


def _is_named_error_or_harmless(load: Callable[[], dict[str, Tensor]], expected: dict[str, Tensor]) -> bool:
    """True for a named error."""
    try:
        found = load()
    except ArtifactError:
        return True
    assert same(found, expected)
    return False


@pytest.fixture(scope="module")
def intact(pristine: Path) -> LoadedArtifact:
    """What no mutation has changed."""
    return load_artifact(pristine)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), verify=st.booleans())
def test_mutated_manifests(
    artifact: Path,
    pristine: Path,
    intact: LoadedArtifact,
    expected: dict[str, Tensor],
    data: st.DataObject,
    verify: bool,
) -> None:
    shutil.copy(pristine / MANIFEST_NAME, artifact / MANIFEST_NAME)
    paths = _paths(manifest_of(pristine))
    # The targets that are not loaded, and what only people read, are as long as the rest: look elsewhere as often.
    rest = [p for p in paths if p[:1] != ("verification",) and p[:2] not in (("targets", 1), ("targets", 2))]
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(data.draw(st.sampled_from([paths, rest]))))
        kind = data.draw(st.sampled_from(["replace", "delete", "twice", "nudge"]))
        value = data.draw(VALUES)

        def change(m: Any, path: tuple[Any, ...] = path, kind: str = kind, value: Any = value) -> None:
            # The first mutation may have taken away what the second was to change.
            with suppress(KeyError, IndexError, TypeError):
                _mutated(m, path, kind, value)

        lie(artifact, change)

    def load() -> dict[str, Tensor]:
        loaded = load_artifact(artifact, verify_checksums=verify)
        # Without its program, which few artifacts lack, TorchScript answers with other last bits.
        is_same = loaded.signature == intact.signature and loaded.runs_program == intact.runs_program
        return answers(loaded) if is_same else expected

    _is_named_error_or_harmless(load, expected)


def test_most_mutations_are_errors(artifact: Path, pristine: Path) -> None:
    """The test above could pass by finding all mutations harmless: deleting any field of ours is an error.

    Without a program, the TorchScript graph runs.
    """
    plain = manifest_of(pristine)
    names = [
        p
        for p in _paths(plain)
        if p and isinstance(p[-1], str) and p[0] not in ("verification", "versions", "answers")
    ]
    kept = [p for p in names if p[0] != "targets" or len(p) <= 3]
    assert len(kept) > 60
    for path in kept:
        shutil.copy(pristine / MANIFEST_NAME, artifact / MANIFEST_NAME)
        lie(artifact, lambda m, path=path: _mutated(m, path, "delete", None))
        if path[-1] == "program":
            continue
        with pytest.raises(ArtifactError):
            load_artifact(artifact)


def _flipped(file: Path, source: bytes, rng: random.Random) -> None:
    data = bytearray(source)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    if rng.random() < 0.1:
        del data[rng.randrange(len(data)) :]
    file.write_bytes(data)


@pytest.mark.parametrize("part", [MANIFEST_NAME, "target-0.pt", ROWS_NAME])
def test_flipped_bytes_of_a_directory(artifact: Path, expected: dict[str, Tensor], part: str) -> None:
    rng = random.Random(0)
    source = (artifact / part).read_bytes()
    # Nobody reads the digest that earlier releases compare.
    unread = json.loads(source)["manifest_sha256"].encode() if part == MANIFEST_NAME else b"no such bytes"
    start = source.find(unread)
    errors = num_harmful = 0
    for _ in range(150):
        _flipped(artifact / part, source, rng)
        changed = (artifact / part).read_bytes()
        if start >= 0:
            changed = changed[:start] + unread + changed[start + len(unread) :]
        num_harmful += changed != source
        errors += _is_named_error_or_harmless(lambda: answers(load_artifact(artifact)), expected)
    assert num_harmful > 140
    # Nor does anybody read padding between the blocks of rows.
    assert errors >= (100 if part == ROWS_NAME else num_harmful)


def test_flipped_bytes_of_a_single_file(single: Path) -> None:
    rng = random.Random(1)
    source = single.read_bytes()
    expected = answers(load_artifact(single))
    errors = 0
    for _ in range(300):
        _flipped(single, source, rng)
        errors += _is_named_error_or_harmless(lambda: answers(load_artifact(single)), expected)
    assert errors > 150


def test_random_bytes_are_no_artifact(tmp_path: Path) -> None:
    rng = random.Random(2)
    for prefix in (b"", b"PK\x03\x04", b'{"format": "recsys-artifact", '):
        for size in (0, 1, 30, 1000):
            (tmp_path / "x.pt").write_bytes(prefix + rng.randbytes(size))
            (tmp_path / MANIFEST_NAME).write_bytes(prefix + rng.randbytes(size))
            for path in (tmp_path / "x.pt", tmp_path):
                with pytest.raises(ArtifactError):
                    load_artifact(path)


def test_the_mutations_are_json(pristine: Path) -> None:
    """What the first test relies on: a manifest that was not changed passes its way of writing."""
    plain = manifest_of(pristine)
    assert json.loads(json.dumps(plain)) == plain
    assert len(_paths(plain)) > 200
