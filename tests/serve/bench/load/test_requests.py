"""Made requests: valid, of the shape that was asked for, the same for the same seed, on every protocol."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from serve.bench.load.pool import prepare
from serve.bench.load.requests import PRIORITIES, Shape, draw_requests, parse_mix, parse_names
from serve.bench.load.wires import encoder, kserve_request, rest_body, torchrec_request, with_request_id
from serve.config.models import BatchLimits
from serve.engine.interface import ModelInfo
from serve.engine.reference.request_check import RequestChecker
from serve.rpc.metadata import model_metadata
from serve.wire import open_inference_pb2 as open_inference
from serve.wire import predict_pb2 as wire
from serve.wire import predictor_pb2 as predictor
from tests.support.serve.bench_metadata import small_metadata
from tests.support.serve.models import SIGNATURE

METADATA = small_metadata()


def _drawn(
    shape: Shape, count: int = 50, seed: int = 0, metadata: wire.ModelMetadata = METADATA
) -> list[tuple[wire.PredictRequest, str]]:
    return list(draw_requests(metadata, shape, count, np.random.default_rng(seed)))


@pytest.mark.parametrize("rows", ["0", "1", "3", "0-9"])
@pytest.mark.parametrize("ids", ["0", "1", "0-5"])
@pytest.mark.parametrize("zipf", [0.0, 1.05])
def test_requests_are_valid(rows: str, ids: str, zipf: float) -> None:
    checker = RequestChecker(SIGNATURE, BatchLimits())
    shape = Shape(rows=parse_mix(rows), ids_per_bag=parse_mix(ids), zipf=zipf)
    for request, kind in _drawn(shape):
        assert checker.check(request).num_rows == request.num_rows
        assert kind == ""


_USER, _GENRES, _ITEM, _TAGS = SIGNATURE.sparse
_HASHED = replace(SIGNATURE, sparse=(_USER, _GENRES, replace(_ITEM, strings="xxh64"), _TAGS))


@pytest.mark.parametrize("zipf", [0.0, 1.05])
def test_inputs_whose_texts_are_hashed_get_texts(zipf: float) -> None:
    metadata = model_metadata(_HASHED, ModelInfo(name="m"), limits=BatchLimits(), max_message_bytes=1 << 20)
    shape = Shape(rows=parse_mix("0-9"), ids_per_bag=parse_mix("0-5"), zipf=zipf)
    checker = RequestChecker(_HASHED, BatchLimits())
    seen: set[bytes] = set()
    for request, _ in _drawn(shape, 200, metadata=metadata):
        assert checker.check(request).num_rows == request.num_rows
        (item,) = (sparse for sparse in request.sparse if sparse.name == "item")
        assert len(item.strings) == np.frombuffer(item.lengths, "<i4").sum()
        assert not item.values
        seen.update(item.strings)
    assert seen == {b"%08x" % i for i in range(11)}
    for request, _ in _drawn(replace(shape, texts=False), 20, metadata=metadata):
        assert not any(sparse.strings for sparse in request.sparse)
        torchrec_request(request, metadata)


def _with_texts(*texts: bytes) -> wire.PredictRequest:
    """Two rows, with texts in place of one input's IDs."""
    ((request, _),) = _drawn(Shape(rows=parse_mix("2"), ids_per_bag=parse_mix("1")), 1)
    (item,) = (sparse for sparse in request.sparse if sparse.name == "item")
    item.values = b""
    item.strings.extend(texts)
    return request


def test_texts_of_a_recording_keep_their_form() -> None:
    request = _with_texts(b"a", "é".encode())
    message = kserve_request(request, METADATA)
    (at,) = (i for i, one in enumerate(message.inputs) if one.name == "item.values")
    assert (message.inputs[at].datatype, list(message.inputs[at].shape)) == ("BYTES", [2])
    assert message.raw_input_contents[at] == b"\1\0\0\0a\2\0\0\0\xc3\xa9"
    (body,) = (
        one for one in json.loads(rest_body(request, METADATA))["inputs"] if one["name"] == "item.values"
    )
    assert body == {"name": "item.values", "datatype": "BYTES", "shape": [2], "data": ["a", "é"]}


def test_texts_that_a_protocol_cannot_hold() -> None:
    with pytest.raises(ValueError, match=r"item\.values: got a text that is not UTF-8"):
        rest_body(_with_texts(b"a", b"\xff"), METADATA)
    with pytest.raises(ValueError, match="--protocol torchrec has no field for texts"):
        torchrec_request(_with_texts(b"a", b"b"), METADATA)


def test_sizes_and_bags_are_those_of_the_mixes() -> None:
    shape = Shape(
        rows=parse_mix("1:1,20:1"),
        ids_per_bag=parse_mix("2"),
        ids_per_bag_of={"user": parse_mix("1"), "genres": parse_mix("0-3")},
    )
    requests = _drawn(shape, 200)
    assert {request.num_rows for request, _ in requests} == {1, 20}
    assert {kind for _, kind in requests} == {"1 row", "20 rows"}
    lengths: dict[str, set[int]] = {}
    for request, _ in requests:
        for sparse in request.sparse:
            found = np.frombuffer(sparse.lengths, "<i4")
            assert found.sum() == len(sparse.values) // 8
            lengths.setdefault(sparse.name, set()).update(found.tolist())
    assert lengths == {"user": {1}, "genres": {0, 1, 2, 3}, "item": {2}, "tags": {2}}


def test_a_context_is_given_once() -> None:
    metadata = small_metadata("context", "user")
    shape = Shape(rows=parse_mix("1-40"), ranking=True, ids_per_bag=parse_mix("1-4"))
    for request, _ in _drawn(shape, metadata=metadata):
        assert [d.name for d in request.context_dense] == ["context"]
        assert [s.name for s in request.context_sparse] == ["user"]
        assert len(request.context_dense[0].values) == 3 * 4
        assert len(request.context_sparse[0].lengths) == 4
        assert [len(d.values) for d in request.dense] == [4 * request.num_rows]
        assert {len(s.lengths) for s in request.sparse} == {4 * request.num_rows}


def test_priorities_and_names_are_said() -> None:
    priorities = parse_names("high:1,low:1", PRIORITIES)
    requests = _drawn(Shape(priorities=priorities, model="small", version="7"))
    assert {request.priority for request, _ in requests} == {wire.PRIORITY_HIGH, wire.PRIORITY_LOW}
    assert {kind for _, kind in requests} == {"high", "low"}
    assert {(request.model, request.version) for request, _ in requests} == {("small", "7")}


def test_the_same_seed_makes_the_same_requests() -> None:
    shape = Shape(rows=parse_mix("1-5"), zipf=1.0)
    assert _drawn(shape, seed=1) == _drawn(shape, seed=1)
    assert _drawn(shape, seed=1) != _drawn(shape, seed=2)


def test_as_many_requests_are_prepared_as_were_asked_for() -> None:
    shape = Shape(rows=parse_mix("100"), num_distinct=500, deadlines_ms=parse_mix("20"))
    made = prepare(METADATA, shape, encoder("recsys", METADATA), np.random.default_rng(0))
    assert len(made) == 500
    assert {(one.num_rows, one.deadline_s) for one in made} == {(100, 0.02)}
    assert len({one.data for one in made}) == 500


def test_large_requests_are_fewer() -> None:
    shape = Shape(rows=parse_mix("4096"), ids_per_bag=parse_mix("200"), num_distinct=4096)
    made = prepare(METADATA, shape, lambda _request: b"x" * (64 << 20), np.random.default_rng(0))
    assert len(made) == 4


def test_a_request_id_is_appended_to_serialized_bytes() -> None:
    request, _ = _drawn(Shape())[0]
    again = wire.PredictRequest.FromString(with_request_id(request.SerializeToString(), b"17"))
    assert again.request_id == "17"
    again.request_id = ""
    assert again == request


def test_open_inference_has_tensors_by_name() -> None:
    metadata = small_metadata("context", "user")
    shape = Shape(rows=parse_mix("3"), ranking=True, ids_per_bag=parse_mix("0-3"), priorities=parse_mix("1"))
    request, _ = _drawn(shape, metadata=metadata)[0]
    made = open_inference.ModelInferRequest.FromString(kserve_request(request, metadata).SerializeToString())
    shapes = {tensor.name: (tensor.datatype, list(tensor.shape)) for tensor in made.inputs}
    raw = {tensor.name: data for tensor, data in zip(made.inputs, made.raw_input_contents, strict=True)}
    assert shapes["context"] == ("FP32", [1, 3])
    assert shapes["price"] == ("FP32", [3, 1])
    assert shapes["user.lengths"] == ("INT32", [1])
    assert shapes["genres.lengths"] == ("INT32", [3])
    assert raw["tags.weights"] == request.sparse[-1].weights
    assert "genres.weights" not in shapes
    assert made.model_name == "small"
    assert made.parameters["context"].string_param == "context,user"
    assert made.parameters["priority"].int64_param == 1
    body = json.loads(rest_body(request, metadata))
    assert {t["name"]: (t["datatype"], t["shape"]) for t in body["inputs"]} == shapes
    values = next(t["data"] for t in body["inputs"] if t["name"] == "genres.values")
    assert values == np.frombuffer(raw["genres.values"], "<i8").tolist()
    assert body["parameters"] == {"priority": 1, "context": "context,user"}


def test_torchrec_has_features_in_order() -> None:
    request, _ = _drawn(Shape(rows=parse_mix("3"), ids_per_bag=parse_mix("0-3")))[0]
    made = predictor.PredictionRequest.FromString(torchrec_request(request, METADATA).SerializeToString())
    dense = np.frombuffer(made.float_features.values, "<f4").reshape(3, 4)
    np.testing.assert_array_equal(dense[:, :3].ravel(), np.frombuffer(request.dense[0].values, "<f4"))
    np.testing.assert_array_equal(dense[:, 3], np.frombuffer(request.dense[1].values, "<f4"))
    assert (made.batch_size, made.float_features.num_features) == (3, 4)
    lists, scored = made.id_list_features, made.id_score_list_features
    assert (lists.num_features, scored.num_features) == (3, 1)
    assert lists.lengths == b"".join(s.lengths for s in request.sparse[:3])
    assert lists.values == b"".join(s.values for s in request.sparse[:3])
    assert lists.weights == b""
    assert scored.weights == request.sparse[3].weights
