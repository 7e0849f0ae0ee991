"""Texts in place of IDs over every protocol: the answers are those to the IDs that the texts stand for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from export.cli import main as export
from recsys.base.hashing import hash_text, hash_texts
from recsys.checkpoint import Checkpoint, save_checkpoint
from recsys.models.click import build_dlrm
from serve.client import AsyncClient, Context, Settings
from serve.client.errors import InvalidRequestError, PredictError
from serve.client.packing import build_request
from serve.engine.reference.protocols.tensors import Tensor
from serve.wire import open_inference_pb2 as kserve
from serve.wire import predict_pb2 as wire
from tests.cases.rows_of_ids import row_of
from tests.conformance.support.artifacts import (
    CONTEXT,
    HASHED,
    KNOWN_TEXT,
    NUM_POLICY_ROWS,
    Exported,
    hashed_rows,
)
from tests.conformance.support.harness import ServerUnderTest, running, status_of
from tests.conformance.support.http_calls import (
    Reply,
    ask,
    plain_outputs,
    tensor_outputs,
)
from tests.conformance.support.open_inference import assert_same_bits, model_infer, outputs_of, plain
from tests.support.serve.messages.cases import Sample, assert_answers
from tests.support.serve.messages.foreign import binary_of, body_of, kserve_message, tensors
from tests.support.serve.messages.texts import (
    Texts,
    packed,
    text_tensors,
    typed_message,
    with_texts,
)

pytestmark = pytest.mark.engine

EMPTY = "expected a text of at least one byte; leave a missing value out"
NO_NUMBER = "expected a decimal int64: the model has no hash for texts of this input"


def sample_of(small: Exported, num_rows: int = 5, seed: int = 0) -> tuple[Sample, Texts]:
    return with_texts(small.signature, small.sample(num_rows, seed), np.random.default_rng(seed))


def rest(server: ServerUnderTest, path: str, body: Any, **options: Any) -> Reply:
    return ask(f"http://{server.http_address}{path}", body, **options)


@pytest.mark.parametrize("num_rows", [0, 1, 2, 33, 700], ids=lambda n: f"{n}-rows")
def test_texts_over_recsys_v1(server: ServerUnderTest, small: Exported, num_rows: int) -> None:
    sample, texts = sample_of(small, num_rows, seed=num_rows)
    found = server.client().predict(sample.dense, texts, sample.weights)
    assert_same_bits(found, plain(server, sample))
    assert_answers(found, small.answer(sample))


def test_one_input_may_have_texts_and_another_ids(server: ServerUnderTest, small: Exported) -> None:
    sample, texts = sample_of(small)
    mixed = {**sample.sparse, "item": texts["item"], "genres": texts["genres"]}
    assert_same_bits(server.client().predict(sample.dense, mixed, sample.weights), plain(server, sample))


def test_any_bytes_are_hashed_as_they_are(server: ServerUnderTest, small: Exported) -> None:
    sample = small.sample(3)
    texts = [[b"\xff\xfe\x00"], [b"\x80" * 100, b" "], []]
    sample.sparse["item"][:] = [hash_texts(bag).tolist() for bag in texts]
    found = server.client().predict(sample.dense, {**sample.sparse, "item": texts}, sample.weights)
    assert_same_bits(found, plain(server, sample))


def test_texts_on_streams_and_from_asyncio(server: ServerUnderTest, small: Exported) -> None:
    samples = {str(seed): sample_of(small, 1 + seed % 4, seed) for seed in range(50)}
    expected = {name: plain(server, sample) for name, (sample, _) in samples.items()}
    requests = []
    for name, (sample, texts) in samples.items():
        requests.append(build_request(sample.dense, texts, sample.weights, request_id=name))
    requests[7].sparse[2].strings.append(b"")
    requests[7].sparse[2].lengths = np.array([len(requests[7].sparse[2].strings), 0, 0, 0], "<i4").tobytes()

    def check(answers: list[tuple[str, Any]]) -> None:
        found = dict(answers)
        wrong = found.pop("7")
        assert isinstance(wrong, PredictError)
        assert (
            f"sparse['item'].strings: got '' at position {len(requests[7].sparse[2].strings) - 1}, {EMPTY}"
            in str(wrong)
        )
        assert set(found) == set(samples) - {"7"}
        for name, outputs in found.items():
            assert_answers(outputs, expected[name])

    check(list(server.client().stream(requests)))

    async def ask_all() -> list[tuple[str, Any]]:
        async with AsyncClient(server.address, settings=Settings(timeout_s=60.0)) as client:
            sample, texts = samples["3"]
            assert_answers(await client.predict(sample.dense, texts, sample.weights), expected["3"])

            async def sent() -> Any:
                for request in requests:
                    yield request

            return [answer async for answer in client.stream(sent())]

    check(asyncio.run(ask_all()))


@pytest.mark.parametrize("shared", [CONTEXT, ("item",), ("user", "genres"), (*CONTEXT, "item")], ids="+".join)
def test_texts_of_a_context(server: ServerUnderTest, small: Exported, shared: tuple[str, ...]) -> None:
    rows, row_texts = sample_of(small, 6, seed=1)
    one, one_texts = sample_of(small, 1, seed=2)

    def divided(sparse_of_rows: Any, sparse_of_one: Any) -> dict[str, np.ndarray]:
        def kept(part: Any, *, of_context: bool) -> dict[str, Any]:
            return {name: values for name, values in part.items() if (name in shared) == of_context}

        context = Context(
            dense=kept(one.dense, of_context=True),
            sparse=kept(sparse_of_one, of_context=True),
            weights=kept(one.weights, of_context=True),
        )
        dense, weights = kept(rows.dense, of_context=False), kept(rows.weights, of_context=False)
        sparse = kept(sparse_of_rows, of_context=False)
        return server.client().predict(dense, sparse, weights, context=context)

    assert_same_bits(divided(row_texts, one_texts), divided(rows.sparse, one.sparse))


@pytest.mark.parametrize("num_rows", [0, 1, 2, 33], ids=lambda n: f"{n}-rows")
@pytest.mark.parametrize("form", ["raw", "typed"])
def test_texts_over_open_inference(
    server: ServerUnderTest, small: Exported, form: str, num_rows: int
) -> None:
    sample, texts = sample_of(small, num_rows, seed=num_rows)
    made = text_tensors(small.signature, sample, texts)
    message = typed_message(made) if form == "typed" else kserve_message(packed(made))
    assert_same_bits(outputs_of(model_infer(server, message)), plain(server, sample))


@pytest.mark.parametrize("shape", [(3, 2), (3, 1), (3,)], ids=str)
@pytest.mark.parametrize("is_typed", [False, True], ids=["raw", "typed"])
def test_texts_as_one_tensor(
    server: ServerUnderTest, small: Exported, shape: tuple[int, ...], is_typed: bool
) -> None:
    sample = small.sample(3)
    texts = [f"text {i}".encode() for i in range(int(np.prod(shape)))]
    sample.sparse["item"][:] = hash_texts(texts).reshape(3, -1).tolist()
    made = [one for one in tensors(small.signature, sample) if not one.name.startswith("item.")]
    made.append(Tensor("item", "BYTES", shape, b"", texts))
    message = typed_message(made) if is_typed else kserve_message(packed(made))
    assert_same_bits(outputs_of(model_infer(server, message)), plain(server, sample))


def test_contents_in_pieces_are_one_list(server: ServerUnderTest, small: Exported) -> None:
    """A message's field that comes twice is one, as protobuf has it; no client sends it so."""
    sample = small.sample(1)
    sample.sparse["item"][:] = [hash_texts([b"a", b"b", b"c"]).tolist()]
    made = [one for one in tensors(small.signature, sample) if one.name != "item.values"]
    data = typed_message(made).SerializeToString()
    head = kserve.ModelInferRequest.InferInputTensor(name="item.values", datatype="BYTES", shape=[3])
    pieces = [kserve.InferTensorContents(bytes_contents=part) for part in ([b"a"], [], [b"b", b"c"])]
    parts = [kserve.ModelInferRequest.InferInputTensor(contents=piece) for piece in pieces]
    whole = b"".join(one.SerializeToString() for one in (head, *parts))
    data += b"\x2a" + bytes([len(whole)]) + whole  # field 5: one more input
    found = server.channel().unary_unary("/inference.GRPCInferenceService/ModelInfer")(data)
    assert_same_bits(outputs_of(kserve.ModelInferResponse.FromString(found)), plain(server, sample))


def test_texts_over_rest(server: ServerUnderTest, small: Exported) -> None:
    sample, texts = sample_of(small, 7)
    expected = plain(server, sample)
    made = text_tensors(small.signature, sample, texts)
    assert_same_bits(tensor_outputs(rest(server, "/v2/models/small/infer", body_of(made)).json()), expected)
    data, headers = binary_of(packed(made))
    reply = rest(server, "/v2/models/small/infer", data, headers=headers)
    assert_same_bits(tensor_outputs(reply.json()), expected)
    body = {"dense": sample.dense, "sparse": texts, "weights": sample.weights}
    reply = rest(server, "/v1/models/small:predict", body)
    assert_same_bits(plain_outputs(reply.json(), expected), expected)


def test_plain_json_with_bare_texts_and_a_context_of_texts(server: ServerUnderTest) -> None:
    body = {
        "dense": {"price": [0.5, 2]},
        "sparse": {"genres": ["1", "2"], "item": [["85f751fd"], []]},
        "context": {
            "dense": {"context": [[1, 2, 3]]},
            "sparse": {"user": ["7"], "tags": [["1", "2"]]},
            "weights": {"tags": [[0.5, 1]]},
        },
    }
    numbers = json.loads(json.dumps(body))
    numbers["sparse"] = {"genres": [1, 2], "item": [[hash_text("85f751fd")], []]}
    numbers["context"]["sparse"] = {"user": [7], "tags": [[1, 2]]}
    found, expected = (rest(server, "/v1/models/small:predict", one).json() for one in (body, numbers))
    assert found == expected


def test_numbers_may_be_written_as_tables_have_them(server: ServerUnderTest) -> None:
    def asked(user: Any, price: Any) -> Reply:
        body = {
            "dense": {"price": [price], "context": [[1, 2, 3]]},
            "sparse": {"user": [user], "genres": [[]], "item": [[]], "tags": [[]]},
            "weights": {"tags": [[]]},
        }
        return rest(server, "/v1/models/small:predict", body)

    expected = asked(7, 1).json()["outputs"]
    for text in ("7", "7.0", " 7", "7.", "007.00\t"):
        assert asked(text, True).json()["outputs"] == expected
    for text in ("7.5", "0x7", "7_0", "+7", "7e0", "9007199254740993.0", " ", ".0", "1 .0"):
        refused = asked(text, 1)
        assert (refused.status, NO_NUMBER in refused.json()["error"]) == (400, True)


def test_many_requests_with_texts_and_without_get_their_own_answers(
    server: ServerUnderTest, small: Exported
) -> None:
    client = server.client()

    def one(seed: int) -> None:
        sample, texts = sample_of(small, 1 + seed % 3, seed)
        sparse = texts if seed % 2 else sample.sparse
        assert_answers(client.predict(sample.dense, sparse, sample.weights), small.answer(sample))

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(one, range(400)))


def test_the_metadata_names_the_hash(server: ServerUnderTest) -> None:
    assert {s.name: s.strings for s in server.client().metadata().sparse} == {
        "user": "",
        "genres": "",
        "item": "xxh64",
        "tags": "",
    }


def _put(request: wire.PredictRequest, name: str, texts: Sequence[bytes], values: bytes = b"") -> None:
    (found,) = (sparse for sparse in request.sparse if sparse.name == name)
    found.strings[:] = texts
    found.values = values
    found.lengths = np.array([len(texts), 0], "<i4").tobytes()


def _item(request: wire.PredictRequest, *texts: bytes, values: bytes = b"") -> None:
    _put(request, "item", texts, values)


def _user(request: wire.PredictRequest, *texts: bytes) -> None:
    _put(request, "user", texts)


WRONG = {
    "empty": (lambda r: _item(r, b"a", b""), f"sparse['item'].strings: got '' at position 1, {EMPTY}"),
    "both": (
        lambda r: _item(r, b"a", values=bytes(8)),
        "sparse['item'].strings: got 1 texts beside 1 values, expected one of the two",
    ),
    "no-number": (lambda r: _user(r, b"1", b"x"), f"sparse['user'].strings: got 'x' at position 1, {NO_NUMBER}"),
    "no-text": (lambda r: _user(r, b""), f"sparse['user'].strings: got '' at position 0, {NO_NUMBER}"),
    "a-sign": (lambda r: _user(r, b"-"), f"sparse['user'].strings: got '-' at position 0, {NO_NUMBER}"),
    "plus": (lambda r: _user(r, b"+1"), "got '+1' at position 0"),
    "beyond-int64": (
        lambda r: _user(r, b"9223372036854775808"),
        "sparse['user'].strings: got '9223372036854775808' at position 0",
    ),
    "below-int64": (lambda r: _user(r, b"-9223372036854775809"), "got '-9223372036854775809' at position 0"),
    "long": (lambda r: _user(r, b"1" * 5000), f"got '{'1' * 61}...' at position 0"),
    "no-utf8": (lambda r: _user(r, b"\xff\xc3\xa9\\"), r"got '\xffé\\' at position 0"),
    "id-at-limit": (lambda r: _user(r, b"50"), "sparse['user'].values: got ID 50 in row 0, expected 0 <= ID < 50"),
    "negative": (lambda r: _user(r, b"-1"), "sparse['user'].values: got ID -1 in row 0"),
    "too-few": (
        lambda r: (_item(r, b"a"), setattr(r.sparse[2], "lengths", np.array([1, 1], "<i4").tobytes())),
        "sparse['item'].values: got 1 IDs, expected 2 (the sum of its lengths)",
    ),
    "too-many": (lambda r: _item(r, *[b"a"] * 262_145), "IDs, expected at most 262144 in one request"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_texts_are_refused_by_field_position_got_and_expected(
    server: ServerUnderTest, small: Exported, name: str
) -> None:
    spoil, text = WRONG[name]
    request = small.sample(2).request()
    spoil(request)
    code, found = status_of(lambda: server.predict_bytes()(request.SerializeToString()))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text in found


def _texts(name: str, *texts: bytes, shape: tuple[int, ...] | None = None) -> Tensor:
    return Tensor(name, "BYTES", (len(texts),) if shape is None else shape, b"", texts)


WRONG_TENSORS = {
    "fewer": (_texts("item.values", b"a", shape=(2,)), "inputs['item.values']: got 1 texts, expected 2 (BYTES [2])"),
    "more": (_texts("item.values", b"a", b"b", shape=(1,)), "inputs['item.values']: got more than 1 texts, expected 1"),
    "many": (_texts("item.values", shape=(262_145,)), "sparse: got 262145 IDs, expected at most 262144 in one"),
    "negative": (_texts("item.values", b"a", shape=(-1,)), "inputs['item.values'].shape: got [-1], expected sizes"),
    "empty": (_texts("item.values", b"a", b""), f"sparse['item'].strings: got '' at position 1, {EMPTY}"),
    "no-number": (_texts("user.values", b"1", b"x"), f"sparse['user'].strings: got 'x' at position 1, {NO_NUMBER}"),
    "dense": (_texts("price", b"1", b"2", shape=(2, 1)), "inputs['price'].datatype: got 'BYTES', expected FP32"),
    "lengths": (_texts("item.lengths", b"1", b"1"), "got 'BYTES', expected INT64 or INT32"),
    "strings": (
        Tensor("item.values", "STRING", (1,), b""),
        "inputs['item.values'].datatype: got 'STRING', expected INT64 or INT32 or BYTES",
    ),
}  # fmt: skip
CUT = {"length": b"\x01\0\0\0a\x01\0\0", "text": b"\x01\0\0\0a\x02\0\0\0b", "endless": b"\xff\xff\xff\xffa"}


def _with_tensor(small: Exported, wrong: Tensor) -> list[Tensor]:
    sample = small.sample(2)
    name = wrong.name.split(".")[0]
    if name in sample.sparse:
        sample.sparse[name][:] = [[1, 1], []]
    return [wrong if one.name == wrong.name else one for one in tensors(small.signature, sample)]


@pytest.mark.parametrize("name", WRONG_TENSORS)
@pytest.mark.parametrize("form", ["raw", "typed"])
def test_wrong_tensors_of_texts(server: ServerUnderTest, small: Exported, form: str, name: str) -> None:
    wrong, text = WRONG_TENSORS[name]
    made = _with_tensor(small, wrong)
    message = typed_message(made) if form == "typed" else kserve_message(packed(made))
    code, found = status_of(lambda: model_infer(server, message))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text in found


@pytest.mark.parametrize("name", CUT)
def test_texts_that_are_cut(server: ServerUnderTest, small: Exported, name: str) -> None:
    wrong = Tensor("item.values", "BYTES", (2,), CUT[name])
    code, text = status_of(lambda: model_infer(server, kserve_message(_with_tensor(small, wrong))))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    size = len(CUT[name])
    assert (
        f"inputs['item.values']: got {size} bytes that end within a text, expected each text after its length"
        in text
    )


def test_numbers_in_the_field_of_texts(server: ServerUnderTest, small: Exported) -> None:
    message = typed_message(tensors(small.signature, small.sample(2)))
    (item,) = (one for one in message.inputs if one.name == "item.values")
    item.contents.Clear()
    item.contents.bytes_contents.append(b"1")
    code, text = status_of(lambda: model_infer(server, message))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "inputs['item.values'].contents: got bytes_contents, expected int64_contents for INT64" in text
    item.datatype = "BYTES"
    item.contents.int64_contents.append(1)
    code, text = status_of(lambda: model_infer(server, message))
    assert "got int64_contents, bytes_contents, expected bytes_contents for BYTES" in text


@pytest.mark.parametrize(
    ("name", "rows", "text"),
    [
        ("item", [["a", 1], []], "sparse['item']: got a whole number, expected texts alone"),
        (
            "item",
            [["a", "\ud800"], []],
            "sparse['item']: got half a surrogate pair at position 1, expected text",
        ),
        ("item", [[""], []], f"sparse['item'].strings: got '' at position 0, {EMPTY}"),
        ("user", [["a"], []], f"sparse['user'].strings: got 'a' at position 0, {NO_NUMBER}"),
    ],
    ids=["mixed", "surrogate", "empty", "no-number"],
)
def test_wrong_texts_over_rest(
    server: ServerUnderTest, small: Exported, name: str, rows: list[Any], text: str
) -> None:
    sample = small.sample(2)
    body = {"dense": sample.dense, "sparse": {**sample.sparse, name: rows}, "weights": sample.weights}
    reply = rest(server, "/v1/models/small:predict", body)
    assert reply.status == 400
    assert text in reply.json()["error"]


def test_a_model_exported_with_strings_answers_texts_over_every_protocol(tmp_path: Path) -> None:
    """From the checkpoint to the answers, with the commands alone."""
    arguments = {
        "tables": [
            {"name": name, "num_embeddings": 101, "embedding_dim": 8, "feature_names": [name]}
            for name in ("site_id", "app_id")
        ],
        "dense_in_features": 1,
        "dense_arch_layer_sizes": [8],
        "over_arch_layer_sizes": [8, 1],
    }
    factory = "recsys.models.click:build_dlrm"
    state = build_dlrm(**arguments).state_dict()
    save_checkpoint(
        tmp_path / "clicks.pt", Checkpoint(factory=factory, arguments=arguments, state_dict=state, info={})
    )
    options = ["--id-policy", "hash", "--strings", "site_id", "--strings", "app_id=xxh64"]
    assert export(["--out", str(tmp_path / "artifact"), str(tmp_path / "clicks.pt"), *options]) == 0
    dense = {"dense_features": [[0.5], [1.0]]}
    texts = {"site_id": [["85f751fd"], ["1fbe01fe", "é"]], "app_id": [["ecad2386"], []]}
    ids = {name: [hash_texts(bag).tolist() for bag in bags] for name, bags in texts.items()}
    with running(tmp_path / "artifact", "--http-port", "0", folder=tmp_path) as server:
        client = server.client()
        expected = client.predict(dense, ids)
        assert_same_bits(client.predict(dense, texts), expected)
        signature = Exported(tmp_path / "artifact").signature
        made = text_tensors(signature, Sample(2, dense, ids, {}), texts)
        assert_same_bits(outputs_of(model_infer(server, kserve_message(packed(made)))), expected)
        reply = rest(server, "/v2/models/clicks/infer", body_of(made))
        assert_same_bits(tensor_outputs(reply.json()), expected)
        reply = rest(server, "/v1/models/clicks:predict", {"dense": dense, "sparse": texts})
        assert_same_bits(plain_outputs(reply.json(), expected), expected)


def test_the_policy_of_the_table_applies_to_the_ids_of_texts(policies: ServerUnderTest) -> None:
    words = ["85f751fd", "日本語", "x"]
    sparse = {
        "reject": [["9"], ["0"], ["5"]],
        "hash": [[word] for word in words],
        "zero": [["-1"], ["9"], ["10"]],
        "mapped": [[KNOWN_TEXT], ["unknown"], []],
        "fmix64": [[word] for word in words],
        HASHED: [[KNOWN_TEXT], [], ["x"]],
    }
    found = policies.client().predict(sparse=sparse)
    known = policies.client().predict(
        sparse={**{name: [[0]] for name in sparse}, "mapped": [[hash_text(KNOWN_TEXT)]]}
    )
    hashed = hashed_rows()(torch.tensor([hash_text(KNOWN_TEXT), hash_text("x")])).tolist()
    assert {name: list(values) for name, values in found.items()} == {
        "reject": [10, 1, 6],
        "hash": [hash_text(word) % NUM_POLICY_ROWS + 1 for word in words],
        "zero": [0, 10, 0],
        "mapped": [known["mapped"][0], NUM_POLICY_ROWS, 0],
        "fmix64": [row_of(hash_text(word), NUM_POLICY_ROWS) + 1 for word in words],
        HASHED: [hashed[0] + 1, 0, hashed[1] + 1],
    }
    assert known["mapped"][0] < NUM_POLICY_ROWS
    with pytest.raises(InvalidRequestError, match=r"sparse\['reject'\].values: got ID 10 in row 1"):
        policies.client().predict(sparse={**sparse, "reject": [["9"], ["10"], []]})
