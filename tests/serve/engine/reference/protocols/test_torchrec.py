"""TorchRec's wire: messages without names to requests, answers to messages."""

from __future__ import annotations

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
from tests.support.serve.messages.wrong_torchrec import WRONG, good, spoiled
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


def test_the_message_that_is_spoiled_is_good() -> None:
    assert checked(SIGNATURE, raw_request(SIGNATURE, good(), LIMITS)).num_rows == 2


@pytest.mark.parametrize("name", WRONG)
def test_each_wrong_message_is_explained(name: str) -> None:
    message, text = spoiled(name)
    with pytest.raises(RequestError) as caught:
        checked(SIGNATURE, raw_request(SIGNATURE, message, LIMITS))
    assert text in str(caught.value)


def test_a_batch_beyond_the_limit_costs_nothing() -> None:
    empty = Signature(dense=(), sparse=ONE_DENSE.sparse, outputs=ONE_DENSE.outputs)
    with pytest.raises(RequestTooLargeError, match="num_rows: got 2147483647"):
        raw_request(empty, wire.PredictionRequest(batch_size=(1 << 31) - 1), LIMITS)
