"""Batches for the exported forward: from requests in JSON, and random."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from recsys.artifact.batches.samples import random_batch, read_samples
from recsys.inputs.signature import DenseInput, IdPolicy, Output, Signature, SparseInput, TableUse

SIGNATURE = Signature(
    dense=(DenseInput(name="dense", width=2),),
    sparse=(
        SparseInput(name="user", pooling="sum", tables=(TableUse(name="u", num_embeddings=10),)),
        SparseInput(
            name="items",
            pooling="mean",
            weighted=True,
            tables=(TableUse(name="i", num_embeddings=5, id_policy=IdPolicy.HASH),),
        ),
    ),
    outputs=(Output(name="score", shape=()),),
)
REQUEST: dict[str, Any] = {
    "dense": {"dense": [[0.5, 1], [2.0, 3.0]]},
    "sparse": {"user": [[7], [1, 2]], "items": [[], [4, 99]]},
    "weights": {"items": [[], [0.5, 2]]},
}
SECOND: dict[str, Any] = {
    "dense": {"dense": [[4, 5]]},
    "sparse": {"items": [[3]], "user": [[]]},
    "weights": {"items": [[1.5]]},
}


def written(tmp_path: Path, *requests: Any) -> Path:
    path = tmp_path / "samples.jsonl"
    path.write_text("\n\n".join(json.dumps(r) for r in requests) + "\n")
    return path


def test_requests_are_joined_key_major(tmp_path: Path) -> None:
    batch = read_samples(written(tmp_path, REQUEST, SECOND), SIGNATURE)
    assert batch.num_rows == 3
    assert batch.dense[0].tolist() == [[0.5, 1], [2, 3], [4, 5]]
    assert batch.lengths.tolist() == [1, 2, 0, 0, 2, 1]
    assert batch.values.tolist() == [7, 1, 2, 4, 99, 3]
    assert batch.weights is not None
    assert batch.weights.tolist() == [1, 1, 1, 0.5, 2, 1.5]
    assert [t.dtype for t in batch.inputs()] == [torch.float32, torch.int64, torch.int64, torch.float32]


def test_a_model_without_dense_inputs_or_weights(tmp_path: Path) -> None:
    signature = Signature(dense=(), sparse=SIGNATURE.sparse[:1], outputs=SIGNATURE.outputs)
    batch = read_samples(written(tmp_path, {"sparse": {"user": [[1], []]}}), signature)
    assert batch.weights is None
    assert [t.tolist() for t in batch.inputs()] == [[1, 0], [1]]


def changed(path: list[Any], value: Any) -> dict[str, Any]:
    data = deepcopy(REQUEST)
    inner: Any = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return data


WRONG: list[tuple[str, Any, str]] = [
    ("no object", [1], "expected an object with"),
    ("unknown section", changed(["extra"], {}), "expected an object with"),
    ("missing dense", changed(["dense"], {}), r"line 3, dense: got \[\], expected \['dense'\]"),
    ("missing feature", changed(["sparse"], {"user": [[1], [1]]}), r"sparse: got \['user'\]"),
    ("missing weights", changed(["weights"], {}), r"weights: got \[\], expected \['items'\]"),
    ("rows differ", changed(["sparse", "user"], [[1]]), r"features with \[1, 2\] rows"),
    ("width", changed(["dense", "dense", 1], [1.0]), "dense 'dense': got 1 numbers, expected 2"),
    ("text", changed(["dense", "dense", 1], ["a", "b"]), "dense 'dense': got .*a list of numbers"),
    ("truth", changed(["dense", "dense", 1], [True, False]), "dense 'dense': got .*a list of numbers"),
    ("float ID", changed(["sparse", "user", 0], [1.5]), "sparse 'user': got .*a list of numbers"),
    ("bare ID", changed(["sparse", "user", 0], 7), "sparse 'user': got 7, expected a list"),
    ("ID", changed(["sparse", "user", 1], [1, 10]), "sparse 'user', row 1: got ID 10, expected 0 <= ID < 10"),
    ("negative ID", changed(["sparse", "user", 0], [-1]), "sparse 'user', row 0: got ID -1"),
    (
        "ID beyond int64",
        changed(["sparse", "items", 0], [2**63]),
        f"sparse 'items', row 0: got ID {2**63}, expected {-(2**63)} <= ID < {2**63}",
    ),
    ("weights", changed(["weights", "items", 1], [0.5]), "weights 'items', row 1: got 1 for 2 IDs"),
    ("weights as text", changed(["weights", "items", 1], ["a", "b"]), "weights 'items': got"),
    ("rows of weights", changed(["weights", "items"], [[]]), "weights 'items': got 1 rows, expected 2"),
]


@pytest.mark.parametrize(("request_", "message"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_wrong_requests_are_named_with_their_line(tmp_path: Path, request_: Any, message: str) -> None:
    with pytest.raises(ValueError, match=r"samples\.jsonl, line 3.*" + message.removeprefix("line 3")):
        read_samples(written(tmp_path, REQUEST, request_), SIGNATURE)


def test_what_is_no_json_and_what_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text("{\n")
    with pytest.raises(ValueError, match=r"samples\.jsonl, line 1: not readable as JSON"):
        read_samples(path, SIGNATURE)
    path.write_text("\n")
    with pytest.raises(ValueError, match=r"samples\.jsonl: got no requests, expected one a line"):
        read_samples(path, SIGNATURE)


@pytest.mark.parametrize("num_rows", [0, 1, 50])
def test_random_batches_fit_the_signature_and_their_seed(num_rows: int) -> None:
    batch, again = (random_batch(SIGNATURE, num_rows, torch.Generator().manual_seed(3)) for _ in "ab")
    assert all(torch.equal(a, b) for a, b in zip(batch.inputs(), again.inputs(), strict=True))
    assert batch.num_rows == num_rows
    assert batch.dense[0].shape == (num_rows, 2)
    assert batch.lengths.shape == (2 * num_rows,)
    assert int(batch.lengths.sum()) == batch.values.numel()
    users, items = torch.split(batch.values, batch.lengths.view(2, num_rows).sum(dim=1).tolist())
    assert users.numel() == 0 or 0 <= int(users.min()) <= int(users.max()) < 10
    assert items.numel() == 0 or 0 <= int(items.min()) <= int(items.max()) < 5
    assert batch.weights is not None
    assert batch.weights.shape == batch.values.shape


RAW = Signature(
    dense=(),
    sparse=(
        SparseInput(
            name="raw",
            pooling="sum",
            tables=(TableUse(name="r", num_embeddings=10, id_policy=IdPolicy.MAPPED),),
        ),
    ),
    outputs=SIGNATURE.outputs,
)


def test_raw_ids_are_read_as_they_are(tmp_path: Path) -> None:
    ids = [-(2**63), -1, 10, 2**63 - 1]
    assert read_samples(written(tmp_path, {"sparse": {"raw": [ids]}}), RAW).values.tolist() == ids


def test_random_raw_ids() -> None:
    known = torch.tensor([-5, 2**62])

    def share_of_known(known_ids: dict[str, torch.Tensor]) -> float:
        batch = random_batch(RAW, 400, torch.Generator().manual_seed(0), known_ids=known_ids)
        others = batch.values[~torch.isin(batch.values, known)]
        assert int(others.min()) < -(2**61)
        assert int(others.max()) > 2**61
        return 1 - others.numel() / batch.values.numel()

    assert 0.4 < share_of_known({"r": known}) < 0.6
    assert share_of_known({}) == share_of_known({"r": known[:0]}) == share_of_known({"other": known}) == 0
