"""Requests in JSON and random batches: what ``forward`` is fed in verification, prediction and tests.

Shape letters: B batch, F features, N number of IDs.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recsys.artifact.batches.samples import random_batch, read_samples
from recsys.base.hashing import hash_text
from recsys.inputs.signature import DenseInput, IdPolicy, Output, Signature, SparseInput, TableUse

SIGNATURE = Signature(
    dense=(DenseInput(name="context", width=2), DenseInput(name="price", width=1)),
    sparse=(
        SparseInput(
            name="user",
            tables=(TableUse(name="u", num_embeddings=10), TableUse(name="v", num_embeddings=7)),
            pooling="sum",
        ),
        SparseInput(name="tag", tables=(TableUse(name="t", num_embeddings=5),), pooling="sum", weighted=True),
        SparseInput(
            name="item",
            tables=(TableUse(name="i", num_embeddings=3, id_policy=IdPolicy.HASH),),
            pooling="mean",
        ),
    ),
    outputs=(Output(name="score", shape=()),),
)
GOOD: dict[str, Any] = {
    "dense": {"context": [[0.5, 1], [2, -3.25]], "price": [[1.0], [2.0]]},
    "sparse": {"user": [[1, 2], []], "tag": [[4], [0, 1]], "item": [[99], [-1]]},
    "weights": {"tag": [[0.5], [1, 2.0]]},
}


def write(path: Path, *requests: Any) -> Path:
    """One request a line; texts as they are."""
    lines = [request if isinstance(request, str) else json.dumps(request) for request in requests]
    (path / "samples.jsonl").write_text("\n".join(lines) + "\n")
    return path / "samples.jsonl"


def test_requests_become_one_key_major_batch(tmp_path: Path) -> None:
    other = {
        "weights": {"tag": [[3]]},
        "sparse": {"item": [[]], "user": [[6]], "tag": [[2]]},
        "dense": {"price": [[9]], "context": [[7, 8]]},
    }
    batch = read_samples(write(tmp_path, GOOD, "", other), SIGNATURE)
    assert batch.num_rows == 3
    assert [t.tolist() for t in batch.dense] == [
        [[0.5, 1.0], [2.0, -3.25], [7.0, 8.0]],
        [[1.0], [2.0], [9.0]],
    ]
    assert batch.lengths.tolist() == [2, 0, 1, 1, 2, 1, 1, 1, 0]
    assert batch.values.tolist() == [1, 2, 6, 4, 0, 1, 2, 99, -1]
    assert batch.weights is not None
    assert batch.weights.tolist() == [1.0, 1.0, 1.0, 0.5, 1.0, 2.0, 3.0, 1.0, 1.0]
    assert [t.dtype for t in batch.inputs()] == [
        torch.float32,
        torch.float32,
        torch.int64,
        torch.int64,
        torch.float32,
    ]


def test_a_request_of_no_rows(tmp_path: Path) -> None:
    empty = {
        "dense": {"context": [], "price": []},
        "sparse": {"user": [], "tag": [], "item": []},
        "weights": {"tag": []},
    }
    batch = read_samples(write(tmp_path, empty), SIGNATURE)
    assert batch.num_rows == 0
    assert [tuple(t.shape) for t in batch.inputs()] == [(0, 2), (0, 1), (0,), (0,), (0,)]
    assert read_samples(write(tmp_path, empty, GOOD), SIGNATURE).num_rows == 2


HASHED = replace(SIGNATURE, sparse=(*SIGNATURE.sparse[:2], replace(SIGNATURE.sparse[2], strings="xxh64")))


def test_texts_of_a_hashed_feature_become_its_ids(tmp_path: Path) -> None:
    request = copy.deepcopy(GOOD)
    request["sparse"]["item"] = [["85f751fd", "é"], [-1]]
    batch = read_samples(write(tmp_path, request), HASHED)
    assert batch.values.tolist()[-3:] == [hash_text("85f751fd"), hash_text("é"), -1]
    assert request["sparse"]["item"] == [["85f751fd", "é"], [-1]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["a", ""], "line 1, sparse 'item', row 1: got '', expected texts; leave a missing value out"),
        (["a", 1], r"line 1, sparse 'item': got \['a', 1\], expected a list of numbers"),
        (["\ud800"], "line 1, sparse 'item', row 1: got half a surrogate pair"),
    ],
    ids=["empty", "mixed", "surrogate"],
)
def test_texts_that_have_no_hash(tmp_path: Path, row: list[Any], message: str) -> None:
    request = copy.deepcopy(GOOD)
    request["sparse"]["item"] = [["x"], row]
    with pytest.raises(ValueError, match=message):
        read_samples(write(tmp_path, request), HASHED)


def _set(*path: Any) -> Callable[[Any], None]:
    *parents, last, value = path

    def change(request: Any) -> None:
        for step in parents:
            request = request[step]
        request[last] = value

    return change


def _drop(*path: Any) -> Callable[[Any], None]:
    *parents, last = path

    def change(request: Any) -> None:
        for step in parents:
            request = request[step]
        del request[last]

    return change


WRONG: dict[str, tuple[Callable[[Any], None], str]] = {
    "unknown section": (_set("extra", {}), "expected an object with"),
    "missing feature": (_drop("sparse", "user"), r"line 2, sparse: got \['item', 'tag'\], expected"),
    "missing dense": (_drop("dense", "price"), r"line 2, dense: got \['context'\]"),
    "missing weights": (_drop("weights"), r"line 2, weights: got \[\], expected \['tag'\]"),
    "weights of an unweighted feature": (_set("weights", "user", [[1, 1], []]), "line 2, weights"),
    "section a list": (_set("sparse", [1]), "line 2, sparse: got"),
    "section a number": (_set("dense", 5), "line 2, dense: got"),
    "rows differ": (_set("sparse", "user", [[1]]), r"line 2: got features with \[1, 2\] rows"),
    "rows no list": (_set("sparse", "user", 5), "line 2, sparse 'user'"),
    "rows an object": (_set("sparse", "user", {"a": 1, "b": 2}), "line 2, sparse 'user'"),
    "dense rows no list": (_set("dense", "price", 5), "line 2, dense 'price'"),
    "dense rows null": (_set("dense", "price", None), "line 2, dense 'price'"),
    "bag no list": (_set("sparse", "user", 0, 7), "line 2, sparse 'user'.*got 7"),
    "ID a text": (_set("sparse", "user", 0, 0, "7"), "line 2, sparse 'user'"),
    "ID a fraction": (_set("sparse", "user", 0, 0, 1.5), "line 2, sparse 'user'"),
    "ID true": (_set("sparse", "user", 0, 0, True), "line 2, sparse 'user'"),
    "ID too large": (
        _set("sparse", "user", 0, 0, 7),
        "line 2, sparse 'user', row 0: got ID 7, expected 0 <= ID < 7",
    ),
    "ID negative": (_set("sparse", "user", 0, 0, -1), "row 0: got ID -1, expected 0 <= ID < 7"),
    "ID beyond int64": (_set("sparse", "item", 1, 0, 2**63), f"'item', row 1: got ID {2**63}"),
    "dense too wide": (
        _set("dense", "context", 0, [1, 2, 3]),
        "line 2, dense 'context': got 3 numbers, expected 2",
    ),
    "dense a text": (_set("dense", "context", 0, 1, "x"), "line 2, dense 'context'"),
    "dense null": (_set("dense", "context", 0, 1, None), "line 2, dense 'context'"),
    "dense beyond floats": (_set("dense", "context", 0, 1, 10**400), "line 2, dense 'context'"),
    "too few weights": (_set("weights", "tag", 1, [1.0]), "line 2, weights 'tag', row 1: got 1 for 2 IDs"),
    "too many weights": (
        _set("weights", "tag", 1, [1, 2, 3]),
        "line 2, weights 'tag', row 1: got 3 for 2 IDs",
    ),
    "weight a text": (_set("weights", "tag", 0, ["x"]), "line 2, weights 'tag'"),
    "weights of too few rows": (_set("weights", "tag", [[0.5]]), "line 2, weights 'tag'"),
    "weights of too many rows": (_set("weights", "tag", [[0.5], [1, 2], [3]]), "line 2, weights 'tag'"),
    "weights no list": (_set("weights", "tag", 3), "line 2, weights 'tag'"),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_wrong_requests_name_line_and_field(
    tmp_path: Path, change: Callable[[Any], None], message: str
) -> None:
    request = copy.deepcopy(GOOD)
    change(request)
    with pytest.raises(ValueError, match=message) as raised:
        read_samples(write(tmp_path, GOOD, request), SIGNATURE)
    assert str(raised.value).startswith("samples.jsonl, line 2")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "samples.jsonl, line 2: not readable as JSON"),
        ("[" * 100_000, "samples.jsonl, line 2: not readable as JSON"),
        ('{"a": ' + "9" * 10_000 + "}", "samples.jsonl, line 2: not readable as JSON"),
        ("3", "samples.jsonl, line 2: expected an object"),
        ("[]", "samples.jsonl, line 2: expected an object"),
    ],
    ids=["truncated", "deep", "huge", "number", "list"],
)
def test_lines_that_are_no_requests(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_samples(write(tmp_path, GOOD, line), SIGNATURE)


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_no_requests(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s").write_bytes(content)
    with pytest.raises(ValueError, match="s: got no requests, expected one a line"):
        read_samples(tmp_path / "s", SIGNATURE)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"\xff\xfe\0")
    with pytest.raises(ValueError, match="s: not readable as UTF-8"):
        read_samples(tmp_path / "s", SIGNATURE)


def test_line_separators_inside_of_texts_are_no_lines(tmp_path: Path) -> None:
    name = "a\u2028b"
    signature = Signature(
        dense=(DenseInput(name=name, width=1),), sparse=(), outputs=(Output(name="score", shape=()),)
    )
    line = json.dumps({"dense": {name: [[1.0]]}}, ensure_ascii=False)
    assert read_samples(write(tmp_path, line), signature).num_rows == 1


@pytest.mark.parametrize("num_rows", [0, 1, 257])
def test_random_batches_fit_the_signature(num_rows: int) -> None:
    batch = random_batch(SIGNATURE, num_rows, torch.Generator().manual_seed(0))
    assert batch.num_rows == num_rows
    assert [tuple(t.shape) for t in batch.dense] == [(num_rows, 2), (num_rows, 1)]
    assert batch.lengths.shape == (3 * num_rows,)
    assert int(batch.lengths.sum()) == batch.values.numel()
    assert batch.weights is not None
    assert batch.weights.shape == batch.values.shape
    if num_rows > 100:
        per_feature = batch.lengths.view(3, num_rows).sum(dim=1).tolist()
        limits = [int(ids.max()) for ids in torch.split(batch.values, per_feature)]
        assert limits == [6, 4, 2]
        assert int(batch.values.min()) == 0
        assert {0, 1} <= set(batch.lengths.tolist())


def test_random_batches_can_be_repeated() -> None:
    one, other = (random_batch(SIGNATURE, 5, torch.Generator().manual_seed(7)).inputs() for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
