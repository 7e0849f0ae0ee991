"""Texts in place of IDs: what the checker makes of them, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from recsys.base.hashing import hash_text, hash_texts
from recsys.inputs.signature import IdPolicy, Signature, SparseInput, TableUse
from serve.config.models import BatchLimits
from serve.engine.reference.raw_request import RawRequest, RawSparse, serialized
from serve.engine.reference.request_check import RequestChecker
from serve.engine.reference.texts import ids_of_texts
from serve.errors import RequestError, RequestTooLargeError, short
from serve.wire import predict_pb2 as wire
from tests.support.serve.messages.wrong import good
from tests.support.serve.models import SIGNATURE

USER, GENRES, ITEM, TAGS = SIGNATURE.sparse
HASHED = replace(SIGNATURE, sparse=(USER, GENRES, replace(ITEM, strings="xxh64"), TAGS))
MIN, MAX = -(2**63), 2**63 - 1


def checker(signature: Signature = HASHED, **limits: int) -> RequestChecker:
    return RequestChecker(signature, BatchLimits(**limits))


def with_texts(**texts: list[bytes]) -> wire.PredictRequest:
    """A good request, with texts in place of some inputs' IDs."""
    request = good()
    for sparse in request.sparse:
        if sparse.name in texts:
            sparse.values = b""
            sparse.strings.extend(texts[sparse.name])
    return request


def test_texts_of_a_hashed_input_are_its_ids() -> None:
    texts = [b"85f751fd", "naïve".encode()]
    expected = good()
    expected.sparse[2].values = hash_texts(texts).astype("<i8").tobytes()
    found = checker().check(with_texts(item=texts)).sparse
    plain = checker().check(expected).sparse
    np.testing.assert_array_equal(found.values, plain.values)
    np.testing.assert_array_equal(found.lengths, plain.lengths)
    np.testing.assert_array_equal(found.weights, plain.weights)
    assert found.num_ids == plain.num_ids
    assert found.values.dtype == np.int64


def test_bytes_are_hashed_as_they_are() -> None:
    texts = [b"\xff\xfe\x00", b" "]
    found = checker().check(with_texts(item=texts)).sparse.values
    assert found[4:6].tolist() == [hash_text(text) for text in texts]


def test_ids_of_a_hashed_input_are_taken_as_hashed() -> None:
    assert checker().check(good()).sparse.values[4:6].tolist() == [-9, 1 << 60]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"0", 0),
        (b"-0", 0),
        (b"49", 49),
        (b"007", 7),
        (b"0" * 5000 + b"7", 7),
        (b"-3", -3),
        *((b" 12", 12), (b"12\t ", 12), (b"12.0", 12), (b"-12.", -12), (b" 012.000 ", 12), (b"0.0", 0)),
        (b"999999999999999.0", 999_999_999_999_999),
        (str(MAX).encode(), MAX),
        (str(MIN).encode(), MIN),
    ],
    ids=lambda value: str(value)[-20:],
)
def test_texts_without_a_hash_are_decimal_numbers(text: bytes, number: int) -> None:
    assert ids_of_texts("sparse", ITEM, [b"5", text]).tolist() == [5, number]


@pytest.mark.parametrize(
    "text",
    [
        *(
            b"",
            b"-",
            b"+1",
            b"1.5",
            b"1.0x",
            b"1.0.0",
            b".0",
            b"-.0",
            b"1 .0",
            b"- 1",
            b" ",
            b"9007199254740993.0",
            b"1e3",
            b"1\n",
            b"--1",
            b"0x1",
            b"1_0",
            b"abc",
            b"\xd9\xa1",
        ),
        *(str(MAX + 1).encode(), str(MIN - 1).encode(), b"1" * 5000, b"\xff"),
    ],
    ids=lambda text: ascii(text)[:20],
)
def test_other_texts_are_no_numbers(text: bytes) -> None:
    with pytest.raises(RequestError) as raised:
        ids_of_texts("sparse", USER, [b"5", text])
    assert str(raised.value) == (
        f"sparse['user'].strings: got {short(text)} at position 1, "
        "expected a decimal int64: the model has no hash for texts of this input"
    )


@pytest.mark.parametrize(
    ("policy", "limit"),
    [(policy, 50 if policy is IdPolicy.REJECT else None) for policy in IdPolicy],
)
def test_the_policy_of_the_table_applies_to_hashed_texts(policy: IdPolicy, limit: int | None) -> None:
    use = SparseInput(
        name="site",
        tables=(TableUse(name="sites", num_embeddings=50, id_policy=policy),),
        pooling="sum",
        strings="xxh64",
    )
    one = RequestChecker(replace(SIGNATURE, dense=(), sparse=(use,)), BatchLimits())
    raw = RawRequest(
        num_rows=1, sparse=[RawSparse("site", np.array([1], "<i4").tobytes(), b"", strings=[b"x"])]
    )
    if limit is None:
        assert one.check(raw).sparse.values.tolist() == [hash_text("x")]
    else:
        with pytest.raises(
            RequestError, match=f"got ID {hash_text('x')} in row 0, expected 0 <= ID < {limit}"
        ):
            one.check(raw)


def test_texts_of_a_context_are_hashed_once() -> None:
    request = with_texts(item=[b"x", b"y"], user=[b"3", b"4", b"5"])
    request.context_sparse.add().CopyFrom(request.sparse[2])
    del request.sparse[2]
    request.context_sparse[0].lengths = np.array([2], "<i4").tobytes()
    ranking = replace(HASHED, context=("item",))
    checked = checker(ranking).check(request)
    assert checked.context is not None
    assert checked.context.values.tolist() == hash_texts([b"x", b"y"]).tolist()
    repeated = checker().check(request).sparse.values  # a model without a context repeats it
    assert repeated[4:8].tolist() == hash_texts([b"x", b"y", b"x", b"y"]).tolist()


def _both(request: wire.PredictRequest) -> None:
    request.sparse[2].values = bytes(16)


def _lengths(*lengths: int) -> Callable[[wire.PredictRequest], None]:
    def spoil(request: wire.PredictRequest) -> None:
        request.sparse[2].lengths = np.array(lengths, "<i4").tobytes()

    return spoil


WRONG: dict[str, tuple[list[bytes], Callable[[wire.PredictRequest], Any], str]] = {
    "both": ([b"a", b"b"], _both, "sparse['item'].strings: got 2 texts beside 2 values, expected one of the two"),
    "empty": (
        [b"a", b""],
        lambda _: None,
        "sparse['item'].strings: got '' at position 1, "
        "expected a text of at least one byte; leave a missing value out",
    ),
    "too-few": ([b"a"], lambda _: None, "sparse['item'].values: got 1 IDs, expected 2 (the sum of its lengths)"),
    "too-many": ([b"a"] * 3, lambda _: None, "sparse['item'].values: got 3 IDs, expected 2"),
    "lengths-before-texts": ([b"a", b""], _lengths(1, 2), "sparse['item'].values: got 2 IDs, expected 3"),
    "short-lengths": ([b"a", b"b"], _lengths(2), "sparse['item'].lengths: got 4 bytes, expected 8"),
    "values-of-no-whole-ids": (
        [b"a", b"b"],
        lambda r: setattr(r.sparse[2], "values", bytes(3)),
        "sparse['item'].values: got 3 bytes, expected a multiple of 8",
    ),
    "weights": (
        [b"a", b"b"],
        lambda r: setattr(r.sparse[2], "weights", bytes(8)),
        "sparse['item'].weights: got 8 bytes, expected none",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_each_wrong_way_is_named(name: str) -> None:
    texts, spoil, message = WRONG[name]
    request = with_texts(item=texts)
    spoil(request)
    with pytest.raises(RequestError) as raised:
        checker().check(request)
    assert message in str(raised.value)


def test_weights_count_with_texts() -> None:
    checked = checker().check(with_texts(tags=[b"0", b"19"])).sparse
    np.testing.assert_array_equal(checked.weights, [1, 1, 1, 1, 1, 1, 0.5, 2.0])
    with pytest.raises(RequestError, match=r"sparse\['tags'\].weights: got 8 bytes, expected 12"):
        checker().check(with_texts(tags=[b"0", b"19", b"1"]))


def test_texts_count_as_ids() -> None:
    with pytest.raises(RequestTooLargeError, match="sparse: got 1006 IDs, expected at most 100"):
        checker(max_request_ids=100).check(with_texts(item=[b""] * 1000))


def test_a_captured_request_keeps_its_texts() -> None:
    request = with_texts(item=[b"a", b"\xff"])
    assert wire.PredictRequest.FromString(serialized(request)) == request


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"abc", "'abc'"),
        (b"it's", '"it\'s"'),
        ("né".encode(), "'né'"),
        (b"\xff\xc3", r"'\xff\xc3'"),
        (b"\\udcff", r"'\\udcff'"),
        (b"\\\xff", r"'\\\xff'"),
        (b"\n\x00\x7f", r"'\n\x00\x7f'"),
        (b"x" * 64, repr("x" * 64)),
        (b"x" * 65, repr("x" * 61 + "...")),
        ("é".encode() * 5000, repr("é" * 61 + "...")),
        ("😀".encode() * 66, repr("😀" * 61 + "...")),
        (b"\xf0\x9f\x98", r"'\xf0\x9f\x98'"),
    ],
)
def test_how_errors_show_texts(text: bytes, shown: str) -> None:
    assert short(text) == shown
