"""What the checker lets through, and one test for each way to be wrong."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from recsys.inputs.signature import Output, Signature, SparseInput, TableUse
from serve.config.models import BatchLimits
from serve.engine.reference.raw_request import RawRequest, RawSparse
from serve.engine.reference.request_check import RequestChecker
from serve.errors import RequestError, RequestTooLargeError
from tests.support.serve.messages.wrong import WRONG, Wrong, good
from tests.support.serve.models import SIGNATURE


@pytest.fixture
def checker() -> RequestChecker:
    return RequestChecker(SIGNATURE, BatchLimits())


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_each_wrong_request_is_refused_by_name(checker: RequestChecker, wrong: Wrong) -> None:
    request = good()
    wrong.spoil(request)
    with pytest.raises(RequestError) as caught:
        checker.check(request)
    assert wrong.text in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_good_request_is_laid_out_key_major(checker: RequestChecker) -> None:
    checked = checker.check(good())
    assert checked.num_rows == 2
    np.testing.assert_array_equal(checked.dense[0], [[1, 2, 3], [4, 5, 6]])
    np.testing.assert_array_equal(checked.dense[1], [[0.5], [0.25]])
    np.testing.assert_array_equal(checked.sparse.lengths, [1, 2, 0, 1, 1, 1, 2, 0])
    np.testing.assert_array_equal(checked.sparse.values, [3, 4, 5, 6, -9, 1 << 60, 0, 19])
    assert checked.sparse.weights is not None
    np.testing.assert_array_equal(checked.sparse.weights, [1, 1, 1, 1, 1, 1, 0.5, 2.0])
    assert (checked.sparse.lengths.dtype, checked.sparse.values.dtype, checked.sparse.weights.dtype) == (
        np.int64,
        np.int64,
        np.float32,
    )


def test_the_order_of_inputs_does_not_matter(checker: RequestChecker) -> None:
    expected, reversed_request = checker.check(good()), good()
    for inputs in (reversed_request.dense, reversed_request.sparse):
        messages = list(inputs)[::-1]
        del inputs[:]
        inputs.extend(messages)
    checked = checker.check(reversed_request)
    for name in ("lengths", "values", "weights"):
        np.testing.assert_array_equal(getattr(checked.sparse, name), getattr(expected.sparse, name))
    for got, wanted in zip(checked.dense, expected.dense, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    "other",
    [
        RequestChecker(replace(SIGNATURE, sparse=SIGNATURE.sparse[::-1]), BatchLimits()),
        RequestChecker(SIGNATURE, BatchLimits(max_request_ids=7)),
        RequestChecker(SIGNATURE, BatchLimits(), allow_non_finite=True),
    ],
    ids=["signature", "limits", "non-finite"],
)
def test_checkers_are_alike_that_make_the_same_of_a_request(
    checker: RequestChecker, other: RequestChecker
) -> None:
    again = RequestChecker(replace(SIGNATURE), replace(BatchLimits()))
    assert checker.is_like(again)
    assert again.is_like(checker)
    assert not checker.is_like(other)


def test_an_empty_batch_passes(checker: RequestChecker) -> None:
    request = good()
    request.num_rows = 0
    for dense in request.dense:
        dense.values = b""
    for sparse in request.sparse:
        sparse.lengths = sparse.values = sparse.weights = b""
    checked = checker.check(request)
    assert (checked.num_rows, checked.sparse.lengths.size, checked.sparse.values.size) == (0, 0, 0)
    assert checked.dense[0].shape == (0, 3)


def test_rows_without_any_id_pass(checker: RequestChecker) -> None:
    request = good()
    for sparse in request.sparse:
        sparse.lengths, sparse.values, sparse.weights = bytes(8), b"", b""
    assert checker.check(request).sparse.values.size == 0


@pytest.mark.parametrize("field", ["dense", "sparse", "context_dense", "context_sparse"])
def test_of_a_flood_of_inputs_only_a_few_are_looked_at(checker: RequestChecker, field: str) -> None:
    class Counted(list):
        """Like a message's repeated field: each access makes a new object."""

        num_made = 0

        def __getitem__(self, which: Any) -> Any:
            found = super().__getitem__(which)
            Counted.num_made += len(found) if isinstance(which, slice) else 1
            return found

        def __iter__(self) -> Any:
            Counted.num_made += len(self)
            return super().__iter__()

    flood = Counted([RawSparse("", b"", b"")] * 100_000)
    request = RawRequest(num_rows=2, **{field: flood})
    with pytest.raises(RequestError, match=r"unknown input ''|missing"):
        checker.check(request)
    assert Counted.num_made < 50


def test_too_many_ids_are_refused_before_they_are_read() -> None:
    checker = RequestChecker(SIGNATURE, BatchLimits(max_request_ids=7))
    with pytest.raises(RequestTooLargeError, match="sparse: got 8 IDs, expected at most 7 in one request"):
        checker.check(good())


def test_non_finite_numbers_pass_where_they_are_allowed() -> None:
    checker = RequestChecker(SIGNATURE, BatchLimits(), allow_non_finite=True)
    request = good()
    request.dense[1].values = np.array([np.nan, np.inf], "<f4").tobytes()
    request.sparse[3].weights = np.array([np.nan, np.inf], "<f4").tobytes()
    checked = checker.check(request)
    assert np.isnan(checked.dense[1][0, 0])
    assert np.isinf(checked.dense[1][1, 0])


def test_threads_may_check_at_once_whatever_they_share() -> None:
    """A client chooses what is shared between its rows; more ways than are remembered, from several threads."""
    names = [f"s{i}" for i in range(9)]
    signature = Signature(
        dense=(),
        sparse=tuple(
            SparseInput(name=name, tables=(TableUse(name=name, num_embeddings=9),), pooling="sum")
            for name in names
        ),
        outputs=(Output(name="score", shape=()),),
    )
    checker = RequestChecker(signature, BatchLimits())
    one, id_ = np.array([1], "<i4").tobytes(), np.array([3], "<i8").tobytes()
    failures: list[BaseException] = []
    start = threading.Barrier(4)

    def check(seed: int) -> None:
        try:
            start.wait(60)
            for shared in np.random.default_rng(seed).integers(1, 2**9 - 1, 600).tolist():
                inputs = [RawSparse(name, one, id_) for name in names]
                request = RawRequest(
                    num_rows=1,
                    sparse=[use for i, use in enumerate(inputs) if not shared >> i & 1],
                    context_sparse=[use for i, use in enumerate(inputs) if shared >> i & 1],
                )
                assert checker.check(request).num_ids == 9
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=check, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures
