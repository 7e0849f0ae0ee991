"""Tensors of Open Inference to requests: every form that fits, every form that does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.inputs.signature import DenseInput, Output, Signature, SparseInput, TableUse
from serve.engine.reference.protocols.tensors import Tensor, raw_request
from serve.engine.reference.raw_request import RawRequest
from serve.errors import RequestError, RequestTooLargeError
from serve.protocols.open_inference import input_specs, output_specs, pack_texts, unpack_texts
from tests.support.serve.messages.cases import random_sample
from tests.support.serve.messages.foreign import LIMITS, assert_same, checked, tensor, tensors
from tests.support.serve.models import SIGNATURE

ONE_TABLE = (TableUse(name="t", num_embeddings=100),)
ONE_SPARSE = Signature(
    dense=(),
    sparse=(SparseInput(name="user", tables=ONE_TABLE, pooling="sum"),),
    outputs=(Output(name="score", shape=()),),
)
WEIGHTED = Signature(
    dense=(DenseInput(name="price", width=1),),
    sparse=(SparseInput(name="tags", tables=ONE_TABLE, pooling="sum", weighted=True),),
    outputs=(Output(name="score", shape=()),),
)
PRICE = tensor("price", "FP32", np.array([[1.0], [2.0]], "<f4"))


def raw(signature: Signature, made: list[Tensor], *context: str) -> RawRequest:
    return raw_request(signature, made, frozenset(context), LIMITS)


def ids(name: str, array: object, datatype: str = "INT64") -> Tensor:
    return tensor(name, datatype, np.array(array, "<i8" if datatype == "INT64" else "<i4"))


def texts(name: str, array: list[bytes], shape: tuple[int, ...] | None = None, typed: bool = False) -> Tensor:
    """A BYTES tensor, its texts as one run of bytes or one by one."""
    shape = (len(array),) if shape is None else shape
    if typed:
        return Tensor(name, "BYTES", shape, b"", array)
    return Tensor(name, "BYTES", shape, pack_texts(array))


@pytest.mark.parametrize("rows", [0, 1, 5])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_jagged_tensors_are_the_request_that_our_own_wire_brings(rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sample = random_sample(SIGNATURE, rows, rng)
    made = tensors(SIGNATURE, sample)
    rng.shuffle(made)  # type: ignore[arg-type]
    assert_same(checked(SIGNATURE, raw(SIGNATURE, made)), checked(SIGNATURE, sample.request()))


def test_int32_ids_and_int64_lengths_are_the_same_request() -> None:
    wide = raw(ONE_SPARSE, [ids("user.values", [7, 8, 9]), ids("user.lengths", [1, 2], "INT32")])
    narrow = raw(ONE_SPARSE, [ids("user.values", [7, 8, 9], "INT32"), ids("user.lengths", [1, 2])])
    assert wide == narrow
    assert wide.num_rows == 2
    assert wide.sparse[0].values == np.array([7, 8, 9], "<i8").tobytes()
    assert wide.sparse[0].lengths == np.array([1, 2], "<i4").tobytes()


@pytest.mark.parametrize(
    ("array", "lengths"),
    [
        ([[1, 2], [3, 4], [5, 6]], [2, 2, 2]),
        ([1, 2, 3], [1, 1, 1]),
        (np.zeros((3, 0)), [0, 0, 0]),
        (np.zeros((0, 4)), []),
    ],
)
@pytest.mark.parametrize("datatype", ["INT64", "INT32"])
def test_whole_tensors_of_ids_have_equal_lengths(array: object, lengths: list[int], datatype: str) -> None:
    made = raw(ONE_SPARSE, [ids("user", array, datatype)])
    assert made.num_rows == len(lengths)
    assert made.sparse[0].lengths == np.array(lengths, "<i4").tobytes()
    assert made.sparse[0].values == np.array(array, "<i8").tobytes()


@pytest.mark.parametrize("typed", [False, True])
def test_texts_come_in_parts_or_whole(typed: bool) -> None:
    array = [b"7", b"", b"\xff", b"8" * 300]
    parts = raw(ONE_SPARSE, [texts("user.values", array, typed=typed), ids("user.lengths", [1, 3], "INT32")])
    whole = raw(ONE_SPARSE, [texts("user", array, (2, 2), typed)])
    flat = raw(ONE_SPARSE, [texts("user", array, typed=typed)])
    assert [list(made.sparse[0].strings) for made in (parts, whole, flat)] == [array] * 3
    lengths = [np.frombuffer(made.sparse[0].lengths, "<i4").tolist() for made in (parts, whole, flat)]
    assert lengths == [[1, 3], [2, 2], [1, 1, 1, 1]]
    assert not any(made.sparse[0].values for made in (parts, whole, flat))


@pytest.mark.parametrize(("shape", "num_rows"), [((0,), 0), ((3, 0), 3), ((0, 4), 0)])
def test_tensors_without_texts(shape: tuple[int, ...], num_rows: int) -> None:
    made = raw(ONE_SPARSE, [texts("user", [], shape)])
    assert (made.num_rows, list(made.sparse[0].strings)) == (num_rows, [])


@pytest.mark.parametrize("shape", [(262_145,), (1 << 62, 1 << 62)])
def test_texts_beyond_the_limit_are_refused_before_they_are_unpacked(shape: tuple[int, ...]) -> None:
    with pytest.raises(RequestTooLargeError, match=r"sparse: got \d+ IDs, expected at most 262144"):
        raw(ONE_SPARSE, [texts("user", [], shape)])


def test_weights_stand_beside_texts() -> None:
    weights = tensor("tags.weights", "FP32", np.ones((2, 1), "<f4"))
    made = raw(WEIGHTED, [PRICE, texts("tags", [b"1", b"2"], (2, 1)), weights])
    assert checked(WEIGHTED, made).sparse.values.tolist() == [1, 2]


def test_packed_texts_are_what_triton_defines() -> None:
    assert pack_texts([b"ab", b"", b"c"]) == b"\2\0\0\0ab\0\0\0\0\1\0\0\0c"
    assert unpack_texts(b"") == []
    assert unpack_texts(pack_texts([b"ab", b"", b"\xff" * 70_000])) == [b"ab", b"", b"\xff" * 70_000]
    assert unpack_texts(pack_texts([b"ab", b"", b"c"]) + b"cut", 2) == [b"ab", b""]
    assert unpack_texts(b"\0\0\0") is None
    assert unpack_texts(b"\xff\xff\xff\xff") is None


def test_a_hashed_input_is_listed_with_texts() -> None:
    (user,) = ONE_SPARSE.sparse
    hashed = replace(ONE_SPARSE, sparse=(replace(user, strings="xxh64"),))
    assert [tuple(spec) for spec in input_specs(hashed)] == [
        ("user.values", "BYTES", (-1,)),
        ("user.lengths", "INT32", (-1,)),
    ]


def test_weights_stand_beside_either_form() -> None:
    weights = np.array([[0.5, 1.0], [2.0, 3.0]], "<f4")
    whole = raw(WEIGHTED, [PRICE, ids("tags", [[1, 2], [3, 4]]), tensor("tags.weights", "FP32", weights)])
    parts = raw(
        WEIGHTED,
        [
            PRICE,
            ids("tags.values", [1, 2, 3, 4]),
            ids("tags.lengths", [2, 2], "INT32"),
            tensor("tags.weights", "FP32", weights.reshape(-1)),
        ],
    )
    assert whole == parts
    assert whole.sparse[0].weights == weights.tobytes()


def test_a_dense_input_of_width_one_may_be_flat() -> None:
    flat = tensor("price", "FP32", np.array([1.0, 2.0], "<f4"))
    others = [ids("tags", [1, 2]), tensor("tags.weights", "FP32", np.ones(2, "<f4"))]
    assert raw(WEIGHTED, [flat, *others]) == raw(WEIGHTED, [PRICE, *others])


def test_context_inputs_have_one_row_for_all() -> None:
    tags = [ids("tags", [[1, 2]]), tensor("tags.weights", "FP32", np.ones((1, 2), "<f4"))]
    made = raw(WEIGHTED, [PRICE, *tags], "tags")
    assert made.num_rows == 2
    assert [s.name for s in made.context_sparse] == ["tags"]
    assert not made.sparse
    shared = raw(WEIGHTED, [tensor("price", "FP32", np.ones((1, 1), "<f4")), ids("tags", [1, 2, 3]),
                            tensor("tags.weights", "FP32", np.ones(3, "<f4"))], "price")  # fmt: skip
    assert shared.num_rows == 3
    assert [d.name for d in shared.context_dense] == ["price"]
    assert checked(WEIGHTED, shared).num_rows == 3


def test_specs_name_every_tensor() -> None:
    assert [tuple(spec) for spec in input_specs(SIGNATURE)][:4] == [
        ("context", "FP32", (-1, 3)),
        ("price", "FP32", (-1, 1)),
        ("user.values", "INT64", (-1,)),
        ("user.lengths", "INT32", (-1,)),
    ]
    assert input_specs(SIGNATURE)[-1] == ("tags.weights", "FP32", (-1,))
    assert output_specs(SIGNATURE) == [("score", "FP32", (-1,)), ("vectors", "FP32", (-1, 2, 3))]


def _good() -> list[Tensor]:
    return tensors(SIGNATURE, random_sample(SIGNATURE, 2, np.random.default_rng(3)))


def _at(made: list[Tensor], name: str) -> Tensor:
    return next(one for one in made if one.name == name)


def _set(tensor_name: str, **values: object) -> Callable[[list[Tensor]], None]:
    def spoil(made: list[Tensor]) -> None:
        for key, value in values.items():
            setattr(_at(made, tensor_name), key, value)

    return spoil


def _drop(name: str) -> Callable[[list[Tensor]], None]:
    return lambda made: made.remove(_at(made, name))


def _replace(name: str, other: Tensor) -> Callable[[list[Tensor]], None]:
    def spoil(made: list[Tensor]) -> None:
        made[made.index(_at(made, name))] = other

    return spoil


WRONG: dict[str, tuple[Callable[[list[Tensor]], object], str]] = {
    "missing-dense": (_drop("price"), "inputs: missing 'price'"),
    "missing-values": (_drop("user.values"), "inputs: missing 'user.values'"),
    "missing-lengths": (_drop("user.lengths"), "inputs: missing 'user.lengths'"),
    "missing-weights": (_drop("tags.weights"), "inputs: missing 'tags.weights'"),
    "unknown": (_set("price", name="prices"), "inputs: got an unknown tensor 'prices', expected 'context'"),
    "extra": (
        lambda made: made.append(ids("other", [1, 2])),
        "inputs: got an unknown tensor 'other', expected 'context'",
    ),
    "long-name": (lambda made: made.append(ids("n" * 9999, [1])), f"unknown tensor '{'n' * 64}'"),
    "doubled": (lambda made: made.append(made[0]), "inputs: got 'context' more than once"),
    "whole-and-parts": (lambda made: made.append(ids("user", [1, 2])), "inputs: got 'user' whole and in parts"),
    "bool-ids": (
        _set("user.values", datatype="BOOL"),
        "inputs['user.values'].datatype: got 'BOOL', expected INT64 or INT32 or BYTES",
    ),
    "unsigned-ids": (_set("user.values", datatype="UINT64"), "got 'UINT64', expected INT64 or INT32 or BYTES"),
    "bytes-lengths": (_set("user.lengths", datatype="BYTES"), "got 'BYTES', expected INT64 or INT32"),
    "bytes-dense": (_set("price", datatype="BYTES"), "inputs['price'].datatype: got 'BYTES', expected FP32"),
    "fewer-texts": (
        _replace("user.values", texts("user.values", [b"1"], shape=(2,))),
        "inputs['user.values']: got 1 texts, expected 2 (BYTES [2])",
    ),
    "more-texts": (
        _replace("user.values", texts("user.values", [b"1", b"2"], shape=(1,))),
        "inputs['user.values']: got more than 1 texts, expected 1 (BYTES [1])",
    ),
    "no-texts": (
        _replace("user.values", Tensor("user.values", "BYTES", (2,), b"")),
        "inputs['user.values']: got 0 texts, expected 2 (BYTES [2])",
    ),
    "texts-without-lengths": (
        _replace("user.values", Tensor("user.values", "BYTES", (1,), b"abcd")),
        "inputs['user.values']: got 4 bytes that end within a text, expected each text after its length",
    ),
    "cut-length": (
        _replace("user.values", Tensor("user.values", "BYTES", (1,), b"\1\0\0\0x\1\0")),
        "inputs['user.values']: got 7 bytes that end within a text",
    ),
    "cut-text": (
        _replace("user.values", Tensor("user.values", "BYTES", (1,), b"\2\0\0\0x")),
        "inputs['user.values']: got 5 bytes that end within a text",
    ),
    "negative-texts": (
        _replace("user.values", texts("user.values", [], shape=(-1,))),
        "inputs['user.values'].shape: got [-1], expected sizes of 0 or more",
    ),
    "texts-2d": (
        _replace("user.values", texts("user.values", [b"1"], shape=(1, 1))),
        "inputs['user.values'].shape: got [1, 1], expected [-1]",
    ),
    "double-dense": (_set("price", datatype="FP64"), "inputs['price'].datatype: got 'FP64', expected FP32"),
    "no-datatype": (_set("price", datatype=""), "inputs['price'].datatype: got '', expected FP32"),
    "int-weights": (
        _set("tags.weights", datatype="INT32"),
        "inputs['tags.weights'].datatype: got 'INT32', expected FP32",
    ),
    "no-shape": (_set("context", shape=()), "inputs['context'].shape: got [], expected [-1, 3]"),
    "wrong-width": (_set("context", shape=(3, 2)), "inputs['context'].shape: got [3, 2], expected [-1, 3]"),
    "flat-but-wide": (_set("context", shape=(6,)), "inputs['context'].shape: got [6], expected [-1, 3]"),
    "negative-rows": (
        _set("context", shape=(-2, 3)),
        "inputs['context'].shape: got [-2, 3], expected sizes of 0 or more",
    ),
    "huge-rows": (_set("context", shape=(1 << 62, 3)), "inputs['context']: got 24 bytes, expected"),
    "short-data": (_set("price", data=b"\0" * 7), "inputs['price']: got 7 bytes, expected 8 (FP32 [2, 1])"),
    "values-2d": (_set("user.values", shape=(1, 1)), "inputs['user.values'].shape: got [1, 1], expected [-1]"),
    "lengths-2d": (_set("user.lengths", shape=(2, 1)), "inputs['user.lengths'].shape: got [2, 1], expected [-1]"),
    "weights-of-another-shape": (
        _set("tags.weights", shape=(1, 1, 1)),
        "inputs['tags.weights'].shape: got [1, 1, 1], expected",
    ),
    "rows-differ": (
        _replace("price", tensor("price", "FP32", np.ones((3, 1), "<f4"))),
        "inputs['price']: got 3 rows, expected 2, as many as 'context' has",
    ),
    "long-length": (
        _replace("user.lengths", ids("user.lengths", [0, 1 << 31])),
        "inputs['user.lengths']: got 2147483648 in row 1, expected 0 to 2147483647",
    ),
    "negative-wide-length": (
        _replace("user.lengths", ids("user.lengths", [-1, 2])),
        "inputs['user.lengths']: got -1 in row 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_each_wrong_tensor_is_named(name: str) -> None:
    spoil, text = WRONG[name]
    made = _good()
    spoil(made)
    with pytest.raises(RequestError) as caught:
        raw(SIGNATURE, made)
    assert text in str(caught.value)


@pytest.mark.parametrize("shape", [(1 << 40, 0), (4097, 0)])
def test_rows_without_ids_cost_nothing_before_they_are_bounded(shape: tuple[int, int]) -> None:
    with pytest.raises(RequestTooLargeError, match="num_rows"):
        raw(ONE_SPARSE, [Tensor("user", "INT64", shape, b"")])


def test_no_rows_of_many_ids_are_no_rows() -> None:
    assert raw(ONE_SPARSE, [Tensor("user", "INT64", (0, 1 << 62), b"")]).num_rows == 0


@pytest.mark.parametrize("shape", [(), (1, 2, 3), (-1,), (-1, -1), (1 << 62, 1 << 62)])
def test_whole_tensors_of_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(RequestError, match=r"inputs\['user'\]"):
        raw(ONE_SPARSE, [Tensor("user", "INT64", shape, b"\0" * 8)])


def test_a_context_that_does_not_fit_is_refused() -> None:
    tags = [ids("tags", [1, 2]), tensor("tags.weights", "FP32", np.ones(2, "<f4"))]
    for context, text in [
        (("user",), "got an unknown input 'user', expected 'price', 'tags'"),
        (("price", "tags"), "got every input, expected at least one with all the rows"),
        (("price",), "inputs['price']: got 2 rows, expected 1: it is of the context"),
    ]:
        with pytest.raises(RequestError) as caught:
            raw(WEIGHTED, [PRICE, *tags], *context)
        assert text in str(caught.value)
