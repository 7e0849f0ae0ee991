"""The contract survives JSON, and every field of a foreign one is checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from recsys.errors import ManifestError
from recsys.inputs.signature import DenseInput, IdPolicy, Output, Signature, SparseInput, TableUse

SIGNATURE = Signature(
    dense=(DenseInput(name="dense", width=13),),
    sparse=(
        SparseInput(
            name="user",
            pooling="sum",
            tables=(
                TableUse(name="ebc.users", num_embeddings=100),
                TableUse(name="ebc.more", num_embeddings=7, id_policy=IdPolicy.HASH),
            ),
        ),
        SparseInput(
            name="items",
            pooling="none",
            weighted=True,
            tables=(TableUse(name="ec.items", num_embeddings=50, id_policy=IdPolicy.ZERO),),
        ),
    ),
    outputs=(Output(name="score", shape=()), Output(name="vector", shape=(4, 2))),
)


def test_it_survives_json() -> None:
    assert Signature.from_json(json.loads(json.dumps(SIGNATURE.to_json()))) == SIGNATURE


def test_the_hash_of_texts_survives_json() -> None:
    user, items = SIGNATURE.sparse
    hashed = replace(SIGNATURE, sparse=(replace(user, strings="xxh64"), items))
    data = json.loads(json.dumps(hashed.to_json()))
    assert [sparse.get("strings") for sparse in data["sparse"]] == ["xxh64", None]
    assert Signature.from_json(data) == hashed
    assert all("strings" not in sparse for sparse in SIGNATURE.to_json()["sparse"])


def test_the_sizes_of_bags_survive_json() -> None:
    user, items = SIGNATURE.sparse
    sized = replace(SIGNATURE, sparse=(replace(user, num_ids=0), replace(items, num_ids=20, max_ids=30)))
    data = json.loads(json.dumps(sized.to_json()))
    assert [sparse["num_ids"] for sparse in data["sparse"]] == [0, 20]
    assert [sparse.get("max_ids") for sparse in data["sparse"]] == [None, 30]
    assert Signature.from_json(data) == sized
    assert all("num_ids" not in sparse for sparse in SIGNATURE.to_json()["sparse"])


def test_the_columns_of_dense_inputs_survive_json() -> None:
    (context,) = SIGNATURE.dense
    names = tuple(f"c{i}" for i in range(context.width))
    named = replace(SIGNATURE, dense=(replace(context, columns=names),))
    data = json.loads(json.dumps(named.to_json()))
    assert data["dense"][0]["columns"] == list(names)
    assert Signature.from_json(data) == named
    assert "columns" not in SIGNATURE.to_json()["dense"][0]


def test_the_types_of_outputs_survive_json() -> None:
    score, vector = SIGNATURE.outputs
    typed = replace(SIGNATURE, outputs=(score, replace(vector, dtype="int64")))
    data = json.loads(json.dumps(typed.to_json()))
    assert [output.get("dtype") for output in data["outputs"]] == [None, "int64"]
    assert Signature.from_json(data) == typed
    assert [(output.is_integer, output.num_bytes(2)) for output in typed.outputs] == [(False, 8), (True, 128)]


def test_the_batch_dimensions_of_outputs_survive_json() -> None:
    outputs = (
        Output(name="logits", shape=(), batch_dims=(0, 1)),
        Output(name="items", shape=(50, 4), batch_dims=()),
        Output(name="last", shape=(4, 2), batch_dims=(1,)),
        Output(name="score", shape=()),
    )
    shaped = replace(SIGNATURE, outputs=outputs, by_request=True)
    data = json.loads(json.dumps(shaped.to_json()))
    assert [output.get("batch_dims") for output in data["outputs"]] == [[0, 1], [], [1], None]
    assert Signature.from_json(data) == shaped
    assert [output.dims(7) for output in outputs] == [(7, 7), (50, 4), (4, 7, 2), (7,)]
    assert outputs[0].num_bytes(3) == 36
    assert shaped.without_rows == outputs[1]
    assert SIGNATURE.without_rows is None


def test_what_it_tells() -> None:
    user, items = SIGNATURE.sparse
    assert user.id_limit == 100
    assert items.id_limit is None
    assert SIGNATURE.is_weighted
    both = SparseInput(
        name="x",
        pooling="sum",
        tables=(TableUse(name="a", num_embeddings=9), TableUse(name="b", num_embeddings=5)),
    )
    assert both.id_limit == 5
    assert both.row_limit == 5
    assert not Signature(dense=(), sparse=(both,), outputs=SIGNATURE.outputs).is_weighted
    assert (user.row_limit, items.row_limit) == (7, 50)


@pytest.mark.parametrize(
    ("tables", "id_limit", "row_limit"),
    [
        pytest.param([(9, IdPolicy.MAPPED)], None, None, id="mapped"),
        pytest.param([(9, IdPolicy.MAPPED), (7, IdPolicy.HASH)], None, 7, id="mapped and hashed"),
        pytest.param([(5, IdPolicy.MAPPED), (7, IdPolicy.REJECT)], 7, 7, id="mapped and rows"),
        pytest.param([(9, IdPolicy.FMIX64)], None, None, id="mixed"),
        pytest.param([(9, IdPolicy.FMIX64), (7, IdPolicy.HASH)], None, 7, id="mixed and hashed"),
    ],
)
def test_tables_of_raw_ids(
    tables: list[tuple[int, IdPolicy]], id_limit: int | None, row_limit: int | None
) -> None:
    uses = tuple(TableUse(name=f"t{rows}", num_embeddings=rows, id_policy=policy) for rows, policy in tables)
    feature = SparseInput(name="x", pooling="sum", tables=uses)
    assert (feature.id_limit, feature.row_limit) == (id_limit, row_limit)
    signature = Signature(dense=(), sparse=(feature,), outputs=SIGNATURE.outputs)
    assert Signature.from_json(json.loads(json.dumps(signature.to_json()))) == signature


Change = Callable[[dict[str, Any]], object]
WRONG: list[tuple[str, Change, str]] = [
    ("no dense", lambda d: d.pop("dense"), "signature.dense: missing"),
    ("no sparse", lambda d: d.pop("sparse"), "signature.sparse: missing"),
    ("no outputs", lambda d: d.pop("outputs"), "signature.outputs: missing"),
    ("empty outputs", lambda d: d["outputs"].clear(), "signature: got no inputs or no outputs"),
    ("no inputs", lambda d: (d["dense"].clear(), d["sparse"].clear()), "signature: got no inputs"),
    ("width", lambda d: d["dense"][0].update(width=0), r"signature.dense\[0\].width: got '0'"),
    ("name", lambda d: d["dense"][0].update(name=""), r"signature.dense\[0\].name: got ''"),
    (
        "columns",
        lambda d: d["dense"][0].update(columns="ab"),
        r"dense\[0\].columns: got 'ab', expected a list",
    ),
    (
        "few columns",
        lambda d: d["dense"][0].update(width=2, columns=["a"]),
        r"dense\[0\].columns: got \['a'\], expected as many different names as the width, 2",
    ),
    (
        "doubled columns",
        lambda d: d["dense"][0].update(width=2, columns=["a", "a"]),
        r"columns: got \['a', 'a'\], expected as many different names",
    ),
    ("column", lambda d: d["dense"][0].update(columns=[""]), r"dense\[0\].columns\[0\]: got ''"),
    ("pooling", lambda d: d["sparse"][1].update(pooling="max"), r"sparse\[1\].pooling: got 'max'"),
    ("weighted", lambda d: d["sparse"][1].update(weighted=1), r"sparse\[1\].weighted: got '1'"),
    (
        "strings",
        lambda d: d["sparse"][0].update(strings="md5"),
        r"sparse\[0\].strings: got 'md5', expected one of xxh64",
    ),
    (
        "num_ids",
        lambda d: d["sparse"][1].update(num_ids=-1),
        r"sparse\[1\].num_ids: got '-1', expected a whole number of at least 0",
    ),
    ("no hash", lambda d: d["sparse"][0].update(strings=""), r"sparse\[0\].strings: got ''"),
    ("tables", lambda d: d["sparse"][0].update(tables=None), r"sparse\[0\].tables: got 'None'"),
    (
        "rows",
        lambda d: d["sparse"][0]["tables"][1].update(num_embeddings=-3),
        r"sparse\[0\].tables\[1\].num_embeddings: got '-3'",
    ),
    (
        "policy",
        lambda d: d["sparse"][0]["tables"][1].update(id_policy="guess"),
        r"tables\[1\].id_policy: got 'guess', expected one of reject, hash, zero, mapped, fmix64",
    ),
    ("shape", lambda d: d["outputs"][1].update(shape=[0]), r"outputs\[1\].shape: got"),
    (
        "dtype",
        lambda d: d["outputs"][1].update(dtype="int32"),
        r"outputs\[1\].dtype: got 'int32', expected one of float32, int64",
    ),
    (
        "batch dims of rows",
        lambda d: d["outputs"][1].update(batch_dims=[0, 1]),
        r"outputs\[1\].batch_dims: got '\[0, 1\]', expected \[0\], because a batch holds rows of any requests",
    ),
    *[
        (
            f"batch dims {dims}",
            lambda d, dims=dims: (d.update(batch="request"), d["outputs"][0].update(batch_dims=dims)),  # type: ignore[misc]
            rf"outputs\[0\].batch_dims: got .*, expected {expected}",
        )
        for dims, expected in (
            ([1], "different dimensions of 1, ascending"),
            ([-1], "different dimensions of 1"),
            ([0, 0], "different dimensions of 2"),
            ([1, 0], "different dimensions of 2"),
            ([], "different dimensions of 0"),
            (["0"], "a list of whole numbers"),
            (0, "a list of whole numbers"),
            ([True], "a list of whole numbers"),
        )
    ],
    ("doubled input", lambda d: d["dense"][0].update(name="user"), "dense and sparse names are not unique"),
    ("doubled output", lambda d: d["outputs"][1].update(name="score"), "outputs names are not unique"),
]


@pytest.mark.parametrize(("change", "message"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_foreign_signatures_are_checked(change: Change, message: str) -> None:
    data = deepcopy(SIGNATURE.to_json())
    change(data)
    with pytest.raises(ManifestError, match=message):
        Signature.from_json(data)


@pytest.mark.parametrize("data", [None, [], "text", 3], ids=str)
def test_what_is_no_object(data: Any) -> None:
    with pytest.raises(ManifestError, match=r"signature\.dense: missing"):
        Signature.from_json(data)
