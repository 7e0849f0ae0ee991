"""The native runtime library runs compiled graphs: the numbers and the errors of the Python one, from many threads.

MKL rounds by where inputs lie in memory, so numbers are equal up to that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from recsys.artifact.delta import apply, prepare
from recsys.artifact.load import LoadedArtifact, load_artifact, load_compiled_artifact
from serve.engine.reference.requests import RawRequestLike
from tests.native.test_model import batches, python_answer, ranking_batches
from tests.native.tool import NativeError, NativeModel, as_json, assert_same_error, needs_tool
from tests.recsys.artifact.damage import flip, lie, resize_part
from tests.recsys.artifact.test_compiled import UNUSABLE, both, pt2, write_dense_delta
from tests.support.compiled_model import CONTEXT, needs_compiler
from tests.support.serve.messages.cases import random_sample

pytestmark = [needs_tool, needs_compiler]
__all__ = ["both", "pt2"]  # fixtures


@pytest.fixture(scope="module")
def native() -> Iterator[NativeModel]:
    model = NativeModel()
    yield model
    assert model.close() == 0


@pytest.fixture(scope="module")
def compiled(both: Path) -> LoadedArtifact:
    return load_compiled_artifact(both)


def assert_close(found: Iterable[bytes], expected: Sequence[bytes]) -> None:
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            np.frombuffer(got, "<f4"), np.frombuffer(want, "<f4"), rtol=1e-5, atol=1e-6
        )


def assert_same(native: NativeModel, model: LoadedArtifact, requests: Sequence[RawRequestLike]) -> None:
    found = native.predict(model.signature, requests)
    assert_close([values.tobytes() for values in found.values()], python_answer(model, requests))


def test_batches_get_the_same_numbers(native: NativeModel, both: Path, compiled: LoadedArtifact) -> None:
    native.open(both, compiled=True)
    for requests in batches(compiled.signature, 1):
        assert_same(native, compiled, requests)
    for requests in ranking_batches(compiled.signature, set(CONTEXT), 2):
        assert_same(native, compiled, requests)


@pytest.mark.parametrize("num_rows", [0, 1, 2, 17, 300])
def test_a_request_on_its_own_gets_the_same_numbers(
    native: NativeModel, pt2: Path, compiled: LoadedArtifact, num_rows: int
) -> None:
    native.open(pt2)
    request = random_sample(compiled.signature, num_rows, np.random.default_rng(num_rows)).request()
    found = native.predict_one(compiled.signature, request)
    assert_close([values.tobytes() for values in found.values()], python_answer(compiled, [request]))


def test_threads_predict_at_once(native: NativeModel, pt2: Path, compiled: LoadedArtifact) -> None:
    native.open(pt2)
    rng = np.random.default_rng(13)
    requests = [random_sample(compiled.signature, n, rng).request() for n in (3, 5)]
    found = native.call("predict_in_threads", requests=[as_json(request) for request in requests])
    assert found["num_different"] == 0
    assert_close([bytes.fromhex(v) for v in found["outputs"].values()], python_answer(compiled, requests))


@pytest.mark.parametrize("name", UNUSABLE)
def test_what_cannot_run_here_is_the_same_error(native: NativeModel, pt2: Path, name: str) -> None:
    lie(pt2, UNUSABLE[name][0])
    assert_same_error(lambda: native.open(pt2), lambda: load_artifact(pt2))


def test_a_damaged_package_is_the_same_error(native: NativeModel, pt2: Path) -> None:
    flip(pt2 / "target-0.pt2", -40)
    assert_same_error(lambda: native.open(pt2), lambda: load_artifact(pt2))
    (pt2 / "target-0.pt2").write_bytes(b"no zip archive")
    assert_same_error(lambda: native.open(pt2), lambda: load_artifact(pt2))
    resize_part(pt2, "target-0.pt2")
    with pytest.raises(NativeError, match=r"part 'target-0.pt2': not readable as a compiled graph"):
        native.open(pt2)


def test_deltas_change_rows_and_dense_weights(native: NativeModel, pt2: Path, tmp_path: Path) -> None:
    model = load_artifact(pt2)
    native.open(pt2)
    write_dense_delta(tmp_path / "delta", model)
    (pt2 / "target-0.pt2").unlink()
    requests = next(batches(model.signature, 3))
    assert_same(native, model, requests)
    native.call("prepare", path=str(tmp_path / "delta"))
    assert_same(native, model, requests)
    native.call("apply")
    apply(prepare(model.rows, tmp_path / "delta"))
    assert_same(native, model, requests)
