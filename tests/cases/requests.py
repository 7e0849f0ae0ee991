"""Makes requests.json: requests, right and wrong, and what both implementations of the checks must make of them.

``python -m tests.cases.requests`` writes the file. It is read by tests/cases/test_requests.py and by the C++ tests
(cpp_client/tests/request), which know nothing of Python. Bytes are hexadecimal digits, as the wire has them; ``times``
says how often an input stands there.

Shape letters: B rows of a request, F sparse inputs, N number of IDs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recsys.inputs.signature import DenseInput, IdPolicy, Output, Signature, SparseInput, TableUse
from serve.config.models import BatchLimits
from serve.engine.reference.executor import collate
from serve.engine.reference.raw_request import RawDense, RawRequest, RawSparse
from serve.engine.reference.request_check import RequestChecker
from serve.errors import RequestError
from tests.cases.fields import field_of
from tests.cases.texts import DECIMALS, LIST_TEXTS, array, setting, spoiled, texts_at, with_texts
from tests.serve.engine.reference.test_ranking_check import split
from tests.support.serve.messages.cases import random_sample
from tests.support.serve.messages.wrong import WRONG, good
from tests.support.serve.models import SIGNATURE

FILE = Path(__file__).parent / "requests.json"
Json = dict[str, Any]
RANKING = replace(SIGNATURE, context=("context", "user", "tags"))
#: No weights, and an input that several tables limit.
SHARED = Signature(
    dense=(),
    sparse=(
        SparseInput(
            name="it's",
            tables=(
                TableUse(name="model.left.shop.a", num_embeddings=9),
                TableUse(name="model.left.shop.b", num_embeddings=5),
                TableUse(name="shop.c", num_embeddings=3, id_policy=IdPolicy.ZERO),
                TableUse(name="model.right.shop.b", num_embeddings=5),
            ),
            pooling="sum",
        ),
        SparseInput(
            name="raw",
            tables=(TableUse(name="e", num_embeddings=4, id_policy=IdPolicy.MAPPED),),
            pooling="none",
        ),
    ),
    outputs=(Output(name="score", shape=()),),
)
#: An input each of whose bags has one ID.
FIXED = replace(SHARED, sparse=(replace(SHARED.sparse[0], num_ids=1, fixed=True), SHARED.sparse[1]))
#: An input each of whose bags has at most one ID.
CROSSED = replace(SHARED, sparse=(replace(SHARED.sparse[0], num_ids=1, max_ids=1), SHARED.sparse[1]))
#: More inputs than messages list.
WIDE = Signature(
    dense=tuple(DenseInput(name=f"dense {i}", width=1) for i in range(70)),
    sparse=(),
    outputs=(Output(name="score", shape=()),),
)
#: Texts of one input are hashed.
_USER, _GENRES, _ITEM, _TAGS = SIGNATURE.sparse
HASHED = replace(
    SIGNATURE, sparse=(_USER, _GENRES, replace(_ITEM, strings="xxh64"), _TAGS), context=("item",)
)
#: Dense inputs that take missing numbers.
MISSING = replace(SIGNATURE, dense=tuple(replace(dense, missing=True) for dense in SIGNATURE.dense))
#: Inputs that tables of the training hold as lists in texts: of texts, and of numbers.
LISTS = replace(
    HASHED,
    sparse=(_USER, replace(_GENRES, separator="|"), replace(_ITEM, strings="xxh64", separator=", "), _TAGS),
)
SIGNATURES = {
    "plain": SIGNATURE,
    "lists": LISTS,
    "ranking": RANKING,
    "shared": SHARED,
    "fixed": FIXED,
    "crossed": CROSSED,
    "wide": WIDE,
    "hashed": HASHED,
    "missing": MISSING,
}


def _ranking() -> Any:
    """Three rows that share the context of ``RANKING``."""
    rng = np.random.default_rng(5)
    sample, one = random_sample(SIGNATURE, 3, rng, 3), random_sample(SIGNATURE, 1, rng, 3)
    one.sparse["user"][0] = [3, 4]
    one.sparse["tags"][0], one.weights["tags"][0] = [5], [0.5]
    return split(sample, one, {"context", "user", "tags"})[0]


def _shared(*ids: int) -> RawRequest:
    lengths = array("<i4", 1, len(ids) - 1)
    sparse = [RawSparse("it's", lengths, array("<i8", *ids)), RawSparse("raw", bytes(8), b"")]
    return RawRequest(num_rows=2, sparse=sparse)


def _wide(num: int) -> RawRequest:
    return RawRequest(num_rows=1, dense=[RawDense(f"dense {i}", bytes(4)) for i in range(num)])


NAMES = {
    "quote": "it's",
    "controls": "a\tb\nc\rd\x00e\x1ff\x7fg",
    "emoji": "\U0001f600 \U000e0001",
    "63-chars": "ü" * 63,
    "64-chars": "ü" * 64,
    "65-chars": "ü" * 65,
}


def _wrong_context() -> Iterator[tuple[str, Any]]:
    """Ways for the context of a request to be wrong."""
    ways: dict[str, Callable[[Any], object]] = {
        "doubled": lambda r: r.sparse.add().CopyFrom(r.context_sparse[0]),
        "doubled-within": lambda r: r.context_dense.add().CopyFrom(r.context_dense[0]),
        "two-rows": setting("context_sparse", 0, lengths=array("<i4", 1, 1)),
        "bad-id": setting("context_sparse", 0, values=array("<i8", 3, 50)),
        "unknown": lambda r: r.context_dense.add(name="price2"),
        "nan": setting("context_dense", 0, values=array("<f4", 0, float("nan"), 0)),
        "short": setting("context_dense", 0, values=b""),
        "missing": lambda r: r.context_sparse.pop(),
        "negative-length": setting("context_sparse", 0, lengths=array("<i4", -2)),
        "wrong-sum": setting("context_sparse", 0, lengths=array("<i4", 1)),
        "weights": setting("context_sparse", 0, weights=bytes(8)),
        "no-weights": setting("context_sparse", 1, weights=b""),
        "inf-weight": setting("context_sparse", 1, weights=array("<f4", float("inf"))),
        "both-wrong": lambda r: (
            setting("context_sparse", 0, lengths=array("<i4", 1))(r),
            setting("sparse", 0, lengths=b"")(r),
        ),
        "rows-wrong": setting("sparse", 0, lengths=b""),
        "dense-before-sparse": lambda r: (
            setting("context_sparse", 0, lengths=b"")(r),
            setting("dense", 0, values=b"")(r),
        ),
    }
    for name, change in ways.items():
        yield name, spoiled(_ranking, change)


def _requests() -> Iterator[Json]:
    """Each case without its outcome: name, signature, limits, whether numbers may be infinite, request."""

    def case(name: str, request: Any, signature: str = "plain", **other: Any) -> Json:
        return {"name": name, "signature": signature, "request": request, **other}

    for wrong in WRONG:
        yield case(wrong.name, spoiled(good, wrong.spoil))
    for name, text in NAMES.items():
        yield case(f"unknown-{name}", spoiled(good, setting("sparse", 1, name=text)))
    for signature in ("ranking", "plain"):
        for name, request in _wrong_context():
            yield case(f"context-{name}-{signature}", request, signature)
        yield case(f"context-{signature}", _ranking(), signature)
        yield case(f"context-too-many-ids-{signature}", _ranking(), signature, max_ids=4)
        yield case(f"context-too-many-bytes-{signature}", _ranking(), signature, max_bytes=50)
    yield case("context-floods", _flooded(), "ranking")
    yield case("id-of-several-tables", _shared(4, 5, 9), "shared")
    yield case("id-of-the-largest-table", _shared(9, 1), "shared")
    yield case("any-raw-id", spoiled(lambda: _shared(4), _raw(-(2**63), 2**63 - 1)), "shared")
    yield case("any-raw-id-as-text", spoiled(lambda: _shared(4), _raw_texts()), "shared")
    yield case("fixed", _shared(4, 3), "fixed")
    yield case("fixed-longer", _shared(4, 3, 2), "fixed")
    yield case("fixed-shorter", _shared(4), "fixed")
    yield case("fixed-before-a-bad-id", _shared(4, 3, 9), "fixed")
    yield case("wrong-sum-before-fixed", spoiled(lambda: _shared(4, 3, 2), _raw_sum()), "fixed")
    yield case("crossed", _shared(4, 3), "crossed")
    yield case("crossed-empty", _shared(4), "crossed")
    yield case("crossed-several", _shared(4, 3, 2), "crossed")
    yield case("crossed-several-before-a-bad-id", _shared(4, 3, 9), "crossed")
    yield case("wrong-sum-before-crossed-several", spoiled(lambda: _shared(4, 3, 2), _raw_sum()), "crossed")
    yield case("wide", _wide(70), "wide")
    yield case("wide-missing", _wide(3), "wide")
    yield case("wide-unknown", _wide(71), "wide")
    yield case("negative-length-before-a-wrong-sum", spoiled(good, *_sum_and_sign()))
    yield case("wrong-sum-before-a-bad-id", spoiled(good, *_sum_and_id()))
    yield case("size-before-a-negative-length", spoiled(good, *_size_and_sign()))
    yield case("too-many-ids", good(), max_ids=7)
    yield case("as-many-ids-as-may-be", good(), max_ids=8)
    yield case("too-many-ids-before-a-bad-length", spoiled(good, *_sum_and_sign()), max_ids=7)
    yield case("good", good())
    yield case("good-in-another-order", spoiled(good, _reverse))
    yield case("no-rows", _no_rows())
    yield case("no-ids", spoiled(good, _without_ids))
    for name, request in with_texts():
        yield case(f"texts-{name}", request, "hashed")
    for name, at, texts in LIST_TEXTS:
        yield case(f"list-{name}", spoiled(good, texts_at(at, *texts)), "lists")
    too_many = spoiled(good, texts_at(2, b"", b"x"))
    yield case("texts-too-many", too_many, "hashed", max_ids=7)
    yield case("texts-as-many-as-may-be", spoiled(good, texts_at(2, b"a", b"x")), "hashed", max_ids=8)
    yield case("non-finite", spoiled(good, *_non_finite()), allow_non_finite=True)
    yield case("non-finite-refused", spoiled(good, *_non_finite()))
    yield case("missing", spoiled(good, _prices(float("nan"), float("nan"))), "missing")
    yield case("missing-and-infinite", spoiled(good, _prices(float("nan"), float("-inf"))), "missing")


def _raw(*ids: int) -> Callable[[Any], None]:
    return setting("sparse", 1, lengths=array("<i4", 0, len(ids)), values=array("<i8", *ids))


def _raw_sum() -> Callable[[Any], None]:
    return setting("sparse", 1, lengths=array("<i4", 0, 3))


def _raw_texts() -> Callable[[Any], None]:
    texts = [*DECIMALS["zeros"], *DECIMALS["leading-zeros"], *DECIMALS["largest"]]
    return setting("sparse", 1, lengths=array("<i4", 0, len(texts)), strings=texts)


def _sum_and_sign() -> list[Callable[[Any], None]]:
    return [
        setting("sparse", 0, lengths=array("<i4", 1, 1)),
        setting("sparse", 2, lengths=array("<i4", 3, -1)),
    ]


def _sum_and_id() -> list[Callable[[Any], None]]:
    return [
        setting("sparse", 0, values=array("<i8", 3, 4, 50)),
        setting("sparse", 2, lengths=array("<i4", 1, 2)),
    ]


def _size_and_sign() -> list[Callable[[Any], None]]:
    return [setting("sparse", 0, lengths=array("<i4", 4, -1)), setting("sparse", 3, weights=b"")]


def _prices(*prices: float) -> Callable[[Any], None]:
    return setting("dense", 1, values=array("<f4", *prices))


def _non_finite() -> list[Callable[[Any], None]]:
    return [
        setting("dense", 1, values=array("<f4", float("nan"), float("inf"))),
        setting("sparse", 3, weights=array("<f4", float("nan"), float("-inf"))),
    ]


def _reverse(request: Any) -> None:
    for inputs in (request.dense, request.sparse):
        messages = list(inputs)[::-1]
        del inputs[:]
        inputs.extend(messages)


def _without_ids(request: Any) -> None:
    for i in range(len(request.sparse)):
        setting("sparse", i, lengths=bytes(8), values=b"", weights=b"")(request)


def _no_rows() -> Any:
    request = good()
    request.num_rows = 0
    for dense in request.dense:
        dense.values = b""
    for sparse in request.sparse:
        sparse.lengths = sparse.values = sparse.weights = b""
    return request


def _flooded() -> RawRequest:
    flood = [RawSparse("user", bytes(4), b"")] * 1000
    dense = [RawDense("context", bytes(12)), RawDense("price", bytes(4))]
    return RawRequest(num_rows=1, dense=dense, sparse=flood, context_sparse=flood)


def _input_json(message: Any, keys: tuple[str, ...], times: int) -> Json:
    found: Json = {"name": message.name, **{key: getattr(message, key).hex() for key in keys}}
    if getattr(message, "strings", ()):
        found["strings"] = [text.hex() for text in message.strings]
    return {**found, "times": times} if times > 1 else found


def _inputs_json(messages: Any, keys: tuple[str, ...]) -> list[Json]:
    """Equal inputs that follow each other are written once."""
    found: list[tuple[Any, int]] = []
    for message in messages:
        if found and found[-1][0] == message:
            found[-1] = (message, found[-1][1] + 1)
        else:
            found.append((message, 1))
    return [_input_json(message, keys, times) for message, times in found]


def request_json(request: Any) -> Json:
    """A request as plain data; fields that are empty are left out."""
    sparse = ("lengths", "values", "weights")
    parts = {
        "dense": _inputs_json(request.dense, ("values",)),
        "sparse": _inputs_json(request.sparse, sparse),
        "context_dense": _inputs_json(request.context_dense, ("values",)),
        "context_sparse": _inputs_json(request.context_sparse, sparse),
    }
    return {"num_rows": request.num_rows, **{key: part for key, part in parts.items() if part}}


def request_of(data: Json) -> RawRequest:
    """What ``request_json`` wrote."""

    def dense(key: str) -> list[RawDense]:
        return [
            RawDense(d["name"], bytes.fromhex(d["values"]))
            for d in data.get(key, [])
            for _ in range(d.get("times", 1))
        ]

    def sparse(key: str) -> list[RawSparse]:
        return [
            RawSparse(
                s["name"],
                *(bytes.fromhex(s[part]) for part in ("lengths", "values", "weights")),
                strings=[bytes.fromhex(text) for text in s.get("strings", [])],
            )
            for s in data.get(key, [])
            for _ in range(s.get("times", 1))
        ]

    return RawRequest(
        num_rows=data["num_rows"],
        dense=dense("dense"),
        sparse=sparse("sparse"),
        context_dense=dense("context_dense"),
        context_sparse=sparse("context_sparse"),
    )


def checker_of(case: Json) -> RequestChecker:
    """The Python checker of a case."""
    limits = BatchLimits(
        max_request_ids=case.get("max_ids", BatchLimits.max_request_ids),
        max_queue_bytes=case.get("max_bytes", BatchLimits.max_queue_bytes),
    )
    return RequestChecker(
        SIGNATURES[case["signature"]], limits, allow_non_finite=case.get("allow_non_finite", False)
    )


def outcome_of(case: Json, request: Any) -> Json:
    """What Python makes of it: the error, or the batch of this request alone."""
    checker = checker_of(case)
    try:
        checked = checker.check(request)
    except RequestError as error:
        return {"error": type(error).__name__, "field": field_of(str(error))}
    counts = {
        "num_ids": checked.num_ids,
        "spread_bytes": checked.spread_bytes,
        "first_ids": {
            s.name: checker.first_id(checked, s.name) for s in SIGNATURES[case["signature"]].sparse
        },
    }
    return {**counts, "batch": batch_json(checked.context is not None, collate([checked]))}


def batch_json(is_ranking: bool, inputs: Any) -> Json:
    """What the graph takes, argument by argument."""
    arrays: list[npt.NDArray[Any]] = [tensor.numpy() for tensor in inputs]
    return {
        "is_ranking": is_ranking,
        "inputs": [np.ascontiguousarray(array).tobytes().hex() for array in arrays],
    }


def _batches() -> Iterator[Json]:
    """Several requests as one batch."""
    rng = np.random.default_rng(8)
    for i, rows in enumerate([[1, 1], [2, 0, 3], [0, 0], [5], [1, 4, 2, 1]]):
        requests = [random_sample(SIGNATURE, n, rng, 3).request() for n in rows]
        yield _batch_case(f"rows-{i}", "plain", requests)
        for name, shared in (("ranking", {"context", "user", "tags"}), ("plain", {"user", "tags", "price"})):
            requests = [
                split(random_sample(SIGNATURE, n, rng, 3), random_sample(SIGNATURE, 1, rng, 3), shared)[0]
                for n in rows
            ]
            yield _batch_case(f"context-{name}-{i}", name, requests)


def _batch_case(name: str, signature: str, requests: list[Any]) -> Json:
    checked = [checker_of({"signature": signature}).check(request) for request in requests]
    return {
        "name": name,
        "signature": signature,
        "requests": [request_json(request) for request in requests],
        "batch": batch_json(checked[0].context is not None, collate(checked)),
    }


def made() -> Json:
    """The content of the file."""
    limits = BatchLimits()
    cases = []
    for case in _requests():
        request = case.pop("request")
        cases.append({**case, "request": request_json(request), **outcome_of(case, request)})
    return {
        "signatures": {name: signature.to_json() for name, signature in SIGNATURES.items()},
        "max_rows": limits.max_request_rows,
        "max_ids": limits.max_request_ids,
        "max_bytes": limits.max_queue_bytes,
        "cases": cases,
        "batches": list(_batches()),
    }


def dumps(data: Json) -> str:
    """One line for each case."""
    lines = []
    for key, value in data.items():
        if isinstance(value, list):
            items = ",\n".join(json.dumps(item) for item in value)
            lines.append(f'"{key}": [\n{items}\n]')
        else:
            lines.append(f'"{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(dumps(made()))
