"""TorchRec's wire: messages without names to requests, answers to messages."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.inputs.signature import DenseInput, Output, Signature, SparseInput, TableUse
from serve.engine.reference.protocols.torchrec import encode_response, raw_request
from serve.errors import RequestError, RequestTooLargeError
from serve.wire import predictor_pb2 as wire
from tests.support.serve.messages.cases import random_sample
from tests.support.serve.messages.foreign import LIMITS, assert_same, checked, torchrec_message
from tests.support.serve.models import SIGNATURE

ONE_DENSE = Signature(
    dense=(DenseInput(name="dense", width=2),),
    sparse=(SparseInput(name="user", tables=(TableUse(name="t", num_embeddings=9),), pooling="sum"),),
    outputs=(Output(name="default", shape=()),),
)


@pytest.mark.parametrize("rows", [0, 1, 4])
@pytest.mark.parametrize("id_type", ["<i4", "<i8"])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_a_message_is_the_request_that_our_own_wire_brings(rows: int, id_type: str, seed: int) -> None:
    sample = random_sample(SIGNATURE, rows, np.random.default_rng(seed))
    for bags in sample.sparse.values():  # as narrow as int32 IDs are
        bags[:] = [[value % 7 for value in bag] for bag in bags]
    message = torchrec_message(SIGNATURE, sample, id_type)
    assert_same(
        checked(SIGNATURE, raw_request(SIGNATURE, message, LIMITS)), checked(SIGNATURE, sample.request())
    )


def test_int64_ids_keep_all_their_bits() -> None:
    ids = np.array([1 << 40, -5], "<i8")
    message = wire.PredictionRequest(
        batch_size=1,
        float_features=wire.FloatFeatures(num_features=2, values=bytes(8)),
        id_list_features=wire.SparseFeatures(
            num_features=1, lengths=np.array([2], "<i8").tobytes(), values=ids.tobytes()
        ),
    )
    assert raw_request(ONE_DENSE, message, LIMITS).sparse[0].values == ids.tobytes()


def test_outputs_are_named_and_the_first_is_the_default() -> None:
    scores, vectors = np.array([0.5, 0.25], "<f4"), np.arange(12, dtype="<f4")
    data = encode_response(SIGNATURE, [scores.tobytes(), vectors.tobytes()])
    response = wire.PredictionResponse.FromString(data)
    assert {name: list(vec.data) for name, vec in response.predictions.items()} == {
        "default": [0.5, 0.25],
        "score": [0.5, 0.25],
        "vectors": list(range(12)),
    }
    alone = encode_response(ONE_DENSE, [b""])
    assert list(wire.PredictionResponse.FromString(alone).predictions) == ["default"]


def test_the_answer_is_what_protobuf_itself_writes() -> None:
    values = np.array([1.5, float("nan"), -0.0], "<f4")
    expected = wire.PredictionResponse()
    expected.predictions["default"].data.extend(values.tolist())
    assert encode_response(ONE_DENSE, [values.tobytes()]) == expected.SerializeToString()


def test_outputs_are_written_in_the_order_of_the_signature() -> None:
    names = [f"output-{number}" for number in range(20)]
    signature = Signature(dense=(), sparse=(), outputs=tuple(Output(name=name, shape=()) for name in names))
    data = encode_response(signature, [np.float32(number).tobytes() for number in range(20)])
    at = [data.index(f"{name}\x12".encode()) for name in [*names, "default"]]
    assert at == sorted(at)


def _good() -> wire.PredictionRequest:
    """Three IDs of 'user', 'genres' and 'item' each, two of 'tags'."""
    lengths = np.array([1, 2], "<i4").tobytes()
    return wire.PredictionRequest(
        batch_size=2,
        float_features=wire.FloatFeatures(num_features=4, values=bytes(32)),
        id_list_features=wire.SparseFeatures(
            num_features=3, lengths=lengths * 3, values=np.arange(9, dtype="<i4").tobytes()
        ),
        id_score_list_features=wire.SparseFeatures(
            num_features=1,
            lengths=np.array([1, 1], "<i4").tobytes(),
            values=np.array([4, 5], "<i4").tobytes(),
            weights=np.ones(2, "<f4").tobytes(),
        ),
    )


def _set(part: str, **values: object) -> Callable[[wire.PredictionRequest], None]:
    def spoil(message: wire.PredictionRequest) -> None:
        for name, value in values.items():
            setattr(getattr(message, part) if part else message, name, value)

    return spoil


WRONG: dict[str, tuple[Callable[[wire.PredictionRequest], object], str]] = {
    "negative-batch": (_set("", batch_size=-1), "batch_size: got -1, expected 0 or more"),
    "other-batch": (_set("", batch_size=3), "float_features.values: got 32 bytes, expected 48 (float32 [3, 4])"),
    "fewer-floats": (
        _set("float_features", num_features=3),
        "float_features.num_features: got 3, expected 4 (in this order: 'context [3]', 'price [1]')",
    ),
    "short-floats": (_set("float_features", values=bytes(31)), "float_features.values: got 31 bytes, expected 32"),
    "no-floats": (lambda m: m.ClearField("float_features"), "float_features.num_features: got 0, expected 4"),
    "more-features": (
        _set("id_list_features", num_features=4),
        "id_list_features.num_features: got 4, expected 3 (in this order: 'user', 'genres', 'item')",
    ),
    "no-lengths": (
        _set("id_list_features", lengths=b""),
        "id_list_features.lengths: got 0 bytes, expected 24 (int32 [3, 2]) or 48 (int64 [3, 2])",
    ),
    "negative-length": (
        _set("id_list_features", lengths=np.array([1, 2, 1, -1, 0, 3], "<i4").tobytes()),
        "id_list_features.lengths: got -1 for 'genres' in row 1, expected 0 to",
    ),
    "huge-length": (
        _set("id_list_features", lengths=np.array([1, 2, 1, 2, 0, 1 << 62], "<i8").tobytes()),
        "id_list_features.lengths: got 4611686018427387904 for 'item' in row 1",
    ),
    "short-values": (
        _set("id_list_features", values=bytes(35)),
        "id_list_features.values: got 35 bytes, expected 36 (int32 [9]) or 72 (int64 [9])",
    ),
    "weights-of-no-scores": (
        _set("id_list_features", weights=bytes(36)),
        "id_list_features.weights: got 36 bytes, expected none",
    ),
    "missing-weights": (
        _set("id_score_list_features", weights=b""),
        "id_score_list_features.weights: got 0 bytes, expected 8 (float32, one for each of 2 IDs)",
    ),
    "missing-scores": (
        lambda m: m.ClearField("id_score_list_features"),
        "id_score_list_features.num_features: got 0, expected 1 (in this order: 'tags')",
    ),
    "embeddings": (
        _set("embedding_features", num_features=1),
        "embedding_features: got 1 features, expected none",
    ),
    "unary": (_set("unary_features", values=bytes(4)), "unary_features: got 0 features"),
}  # fmt: skip


def test_the_message_that_is_spoiled_is_good() -> None:
    assert checked(SIGNATURE, raw_request(SIGNATURE, _good(), LIMITS)).num_rows == 2


@pytest.mark.parametrize("name", WRONG)
def test_each_wrong_message_is_explained(name: str) -> None:
    spoil, text = WRONG[name]
    message = _good()
    spoil(message)
    with pytest.raises(RequestError) as caught:
        raw_request(SIGNATURE, message, LIMITS)
    assert text in str(caught.value)


def test_a_batch_beyond_the_limit_costs_nothing() -> None:
    empty = Signature(dense=(), sparse=ONE_DENSE.sparse, outputs=ONE_DENSE.outputs)
    with pytest.raises(RequestTooLargeError, match="num_rows: got 2147483647"):
        raw_request(empty, wire.PredictionRequest(batch_size=(1 << 31) - 1), LIMITS)
