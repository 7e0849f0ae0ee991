"""Every form in which people hold their inputs becomes the same bytes; wrong ones are refused before sending."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from recsys import JaggedTensor, KeyedJaggedTensor
from serve.client.packing import Context, build_request, read_response
from serve.wire import predict_pb2 as wire

ROWS = [[3, 1], [], [7]]
LENGTHS, VALUES = np.array([2, 0, 1], "<i4").tobytes(), np.array([3, 1, 7], "<i8").tobytes()


def unpack(request: wire.PredictRequest, name: str) -> tuple[list[int], list[int], list[float]]:
    found = next(sparse for sparse in request.sparse if sparse.name == name)
    return (
        np.frombuffer(found.lengths, "<i4").tolist(),
        np.frombuffer(found.values, "<i8").tolist(),
        np.frombuffer(found.weights, "<f4").tolist(),
    )


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(ROWS, id="lists"),
        pytest.param(tuple(tuple(row) for row in ROWS), id="tuples"),
        pytest.param([[3, 1], [], 7], id="bare-id"),
        pytest.param([np.array(row, np.int32) for row in ROWS], id="arrays"),
        pytest.param([torch.tensor(row, dtype=torch.int64) for row in ROWS], id="tensors"),
        pytest.param(
            JaggedTensor(values=torch.tensor([3, 1, 7]), lengths=torch.tensor([2, 0, 1])), id="JaggedTensor"
        ),
        pytest.param((row for row in ROWS), id="generator"),
    ],
)
def test_ragged_rows_in_every_form(rows: Any) -> None:
    request = build_request({}, {"a": rows})
    assert request.num_rows == 3
    assert (request.sparse[0].lengths, request.sparse[0].values) == (LENGTHS, VALUES)


@pytest.mark.parametrize(
    ("rows", "lengths", "values"),
    [
        pytest.param(np.array([[1, 2], [3, 4]], np.uint8), [2, 2], [1, 2, 3, 4], id="matrix"),
        pytest.param(torch.tensor([[1, 2], [3, 4]]).t(), [2, 2], [1, 3, 2, 4], id="strided-tensor"),
        pytest.param(np.array([5, 6]), [1, 1], [5, 6], id="vector"),
        pytest.param([5, -6], [1, 1], [5, -6], id="bare-ids"),
        pytest.param(np.empty((2, 0), np.int64), [0, 0], [], id="no-ids"),
        pytest.param([[], []], [0, 0], [], id="empty-lists"),
        pytest.param([], [], [], id="no-rows"),
        pytest.param([[2**63 - 1], [-(2**63)]], [1, 1], [2**63 - 1, -(2**63)], id="extremes"),
    ],
)
def test_regular_rows(rows: Any, lengths: list[int], values: list[int]) -> None:
    assert unpack(build_request({}, {"a": rows}), "a") == (lengths, values, [])


def test_a_keyed_jagged_tensor_is_split_by_key() -> None:
    kjt = KeyedJaggedTensor(
        keys=["a", "b"],
        values=torch.tensor([1, 2, 3, 4]),
        lengths=torch.tensor([1, 0, 1, 2]),
        weights=torch.tensor([0.5, 1.5, 2.5, 3.5], requires_grad=True),
    )
    request = build_request({}, kjt)
    assert unpack(request, "a") == ([1, 0], [1], [0.5])
    assert unpack(request, "b") == ([1, 2], [2, 3, 4], [1.5, 2.5, 3.5])
    assert request.num_rows == 2


def test_weights_come_in_the_form_of_their_ids() -> None:
    request = build_request({}, {"a": ROWS}, {"a": [[0.5, 1], [], [2]]})
    assert unpack(request, "a") == ([2, 0, 1], [3, 1, 7], [0.5, 1.0, 2.0])


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([[1, 2.5], [3, 4]], id="lists"),
        pytest.param(np.array([[1, 2.5], [3, 4]], np.float64), id="float64"),
        pytest.param(torch.tensor([[1, 2.5], [3, 4]], requires_grad=True), id="tensor"),
        pytest.param(torch.tensor([[1, 3], [2.5, 4]]).t(), id="strided"),
    ],
)
def test_dense_inputs_in_every_form(values: Any) -> None:
    request = build_request({"d": values}, {})
    assert np.frombuffer(request.dense[0].values, "<f4").tolist() == [1, 2.5, 3, 4]
    assert request.num_rows == 2


def test_true_is_a_number_of_a_dense_input() -> None:
    request = build_request({"d": [[True, 0.5], [False, True]]}, {})
    assert np.frombuffer(request.dense[0].values, "<f4").tolist() == [1, 0.5, 0, 1]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([["85f751fd"], ["1fbe01fe", "é"], []], id="lists"),
        pytest.param([["85f751fd"], ("1fbe01fe", "é".encode()), []], id="tuples-and-bytes"),
        pytest.param(["85f751fd", np.array(["1fbe01fe", "é"]), []], id="bare"),
    ],
)
def test_texts_in_every_form(rows: Any) -> None:
    (sparse,) = build_request({}, {"a": rows}).sparse
    assert list(sparse.strings) == [b"85f751fd", b"1fbe01fe", "é".encode()]
    assert np.frombuffer(sparse.lengths, "<i4").tolist() == [1, 2, 0]
    assert sparse.values == b""


@pytest.mark.parametrize("dtype", [np.object_, "U8", "S8"], ids=str)
def test_texts_in_arrays(dtype: Any) -> None:
    for array in (np.array([["a", "b"], ["c", "d"]], dtype), np.array(["a", "b", "c", "d"], dtype)):
        (sparse,) = build_request({}, {"a": array}).sparse
        assert list(sparse.strings) == [b"a", b"b", b"c", b"d"]
        assert np.frombuffer(sparse.lengths, "<i4").sum() == 4


def test_texts_with_weights_and_in_a_context() -> None:
    shared = Context(sparse={"user": [["u"]]}, num_rows=1)
    request = build_request({}, {"a": [["x", "y"]]}, {"a": [[0.5, 2.0]]}, context=shared)
    assert list(request.sparse[0].strings) == [b"x", b"y"]
    assert np.frombuffer(request.sparse[0].weights, "<f4").tolist() == [0.5, 2.0]
    assert list(request.context_sparse[0].strings) == [b"u"]


@pytest.mark.parametrize(
    ("dense", "sparse", "weights", "text"),
    [
        pytest.param({"d": [["x"]]}, {}, None, r"dense\['d'\]: expected numbers", id="text-dense"),
        pytest.param({"d": [[1], [1, 2]]}, {}, None, r"dense\['d'\]: expected numbers", id="ragged-dense"),
        pytest.param({"d": np.ones((1, 1, 1))}, {}, None, r"got shape \[1, 1, 1\]", id="cube"),
        pytest.param({}, {"a": [[1.5]]}, None, r"sparse\['a'\]: expected whole numbers", id="float-ids"),
        pytest.param(
            {}, {"a": torch.ones(2)}, None, r"sparse\['a'\]: expected whole numbers", id="float-tensor"
        ),
        pytest.param(
            {}, {"a": [[1, "x"]]}, None, r"sparse\['a'\]: expected whole numbers", id="number-and-text"
        ),
        pytest.param(
            {},
            {"a": [["x"], [1]]},
            None,
            r"sparse\['a'\]: got int at position 1, expected texts",
            id="text-and-number",
        ),
        pytest.param(
            {}, {"a": [["\ud800"]]}, None, r"sparse\['a'\]: got half a surrogate pair", id="surrogate"
        ),
        pytest.param({}, {"a": b"12"}, None, r"sparse\['a'\]: got bytes", id="bytes"),
        pytest.param({}, {"a": "12"}, None, r"sparse\['a'\]: got str", id="text"),
        pytest.param({}, {"a": 5}, None, r"sparse\['a'\]: got int, expected a list of rows", id="number"),
        pytest.param({}, {"a": [[[1]]]}, None, r"sparse\['a'\]: expected whole numbers", id="too-deep"),
        pytest.param({}, {"a": [[2**64]]}, None, r"sparse\['a'\]: expected whole numbers", id="too-large"),
        pytest.param({}, {"a": [[2**63]]}, None, r"got 9223372036854775808", id="uint64"),
        pytest.param({}, {"a": np.ones((1, 1, 1), int)}, None, r"got shape \[1, 1, 1\]", id="cube-ids"),
        pytest.param(
            {}, 5, None, "sparse: got int, expected rows by name or a KeyedJaggedTensor", id="no-names"
        ),
        pytest.param({"d": [[1]]}, {"a": [[1], [2]]}, None, "same number of rows in every input", id="rows"),
        pytest.param({}, {"a": [[1]]}, {"b": [[1]]}, "weights: got 'b'", id="unknown-weights"),
        pytest.param(
            {},
            {"a": [[1]]},
            {"a": [[1, 2]]},
            r"weights\['a'\]: got \[2\] weights per row",
            id="weights-count",
        ),
        pytest.param(
            {}, {"a": [[1]]}, {"a": [["x"]]}, r"weights\['a'\]: expected numbers", id="text-weights"
        ),
    ],
)
def test_what_cannot_be_packed_is_a_named_error(dense: Any, sparse: Any, weights: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        build_request(dense, sparse, weights)


def test_a_request_whose_inputs_are_all_shared_says_how_many_rows_it_has() -> None:
    with pytest.raises(
        ValueError, match="context: got every input, expected at least one with a row for each"
    ):
        build_request({}, {}, context=Context(sparse={"user": [[7]]}))
    request = build_request({}, {}, context=Context(sparse={"user": [[7]]}, num_rows=3))
    assert (request.num_rows, len(request.context_sparse)) == (3, 1)


@pytest.mark.parametrize(
    ("num_rows", "text"),
    [
        pytest.param(-1, r"context.num_rows: got -1, expected 0 to 2147483647", id="negative"),
        pytest.param(2**31, r"context.num_rows: got 2147483648, expected 0 to", id="too-many"),
        pytest.param(2, r"context.num_rows: got 2, expected 3, as many as sparse\['a'\] has", id="other"),
    ],
)
def test_a_context_with_a_wrong_number_of_rows_is_refused(num_rows: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        build_request({}, {"a": ROWS}, context=Context(num_rows=num_rows))


def test_a_response_becomes_arrays_of_its_dims() -> None:
    values = np.arange(6, dtype="<f4")
    response = wire.PredictResponse(
        outputs=[
            wire.Output(name="a", dims=[2, 3], values=values.tobytes()),
            wire.Output(name="empty", dims=[0, 3]),
            wire.Output(name="ids", dims=[2], int64_values=np.array([2**53 + 1, -1], "<i8").tobytes()),
            wire.Output(name="no ids", dims=[0, 3], int64_values=b""),
        ]
    )
    outputs = read_response(response)
    assert (outputs["ids"].tolist(), outputs["ids"].dtype) == ([2**53 + 1, -1], np.int64)
    assert (outputs["no ids"].shape, outputs["no ids"].dtype) == ((0, 3), np.int64)
    assert outputs["empty"].dtype == np.float32
    np.testing.assert_array_equal(outputs["a"], values.reshape(2, 3))
    assert outputs["empty"].shape == (0, 3)


@pytest.mark.parametrize("module", ["serve.client", "serve.tools.predict", "serve.bench"])
def test_the_clients_import_without_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
