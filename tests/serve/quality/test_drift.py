"""Drift of inputs: counts of requests against a sketch of the training data."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from recsys.inputs.example_rows import ExampleRows
from recsys.inputs.signature import DenseInput, IdPolicy, Signature, SparseInput, TableUse
from recsys.inputs.sketch import DataSketch, sketch_of, stability_index
from serve.client.packing import Context, build_request
from serve.config.settings import QualityConfig
from serve.engine.reference.answers import Answered, RecordedBlock
from serve.quality.drift import MAX_VERSIONS, InputWatch
from serve.quality.inputs import MAX_INPUTS, Counts, InputCounter, InputDrift
from serve.wire import predict_pb2 as wire

SIGNATURE = Signature(
    dense=(DenseInput(name="d", width=2, missing=True, columns=("age", "price")),),
    sparse=(
        SparseInput(
            name="user",
            tables=(TableUse(name="u", num_embeddings=100, id_policy=IdPolicy.HASH),),
            pooling="sum",
        ),
        SparseInput(
            name="site",
            tables=(TableUse(name="s", num_embeddings=10, id_policy=IdPolicy.HASH),),
            pooling="sum",
            strings="xxh64",
        ),
        SparseInput(
            name="raw",
            tables=(TableUse(name="r", num_embeddings=10, id_policy=IdPolicy.MAPPED),),
            pooling="none",
        ),
    ),
    outputs=(),
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def columns(seed: int, num_rows: int, shift: float = 0.0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    age = random.normal(shift, 1, num_rows).astype(np.float32)
    age[::5] = np.nan
    return {
        "age": age,
        "price": random.exponential(1.0, num_rows).astype(np.float32),
        "user": [[int(u)] for u in random.integers(0, 100, num_rows)],
        "site": [[f"site {s}"] if s else [] for s in random.integers(0, 4, num_rows)],
        "raw": [[int(r) << 40] * int(n) for r, n in random.integers(1, 5, (num_rows, 2))],
    }


def sketch() -> DataSketch:
    rows = columns(0, 5000)
    return sketch_of(
        ExampleRows(
            num_rows=5000,
            dense={n: [None if np.isnan(x) else float(x) for x in rows[n]] for n in ("age", "price")},
            sparse={name: rows[name] for name in ("user", "site", "raw")},
        )
    )


def answered(rows: dict[str, Any], version: str = "1", draw: float = 0.0) -> Answered:
    dense = {"d": np.stack([rows["age"], rows["price"]], axis=1)}
    request = build_request(dense, {name: rows[name] for name in ("user", "site", "raw")})
    return record_of(request, version=version, draw=draw)


def record_of(
    request: wire.PredictRequest, signature: Signature = SIGNATURE, version: str = "1", draw: float = 0.0
) -> Answered:
    return Answered(
        time_s=0.0,
        protocol="recsys",
        model="m",
        version=version,
        request_id="",
        num_rows=request.num_rows,
        draw=draw,
        message=request.SerializeToString(),
        outputs=[],
        signature=signature,
    )


def inputs_of(*names: str) -> Signature:
    """The signature with these sparse inputs alone."""
    return Signature(dense=(), sparse=tuple(one for one in SIGNATURE.sparse if one.name in names), outputs=())


def counted(
    signature: Signature, request: wire.PredictRequest, *owned: Any
) -> tuple[Counts, dict[str, InputDrift]]:
    counter = InputCounter(signature, None)
    counts = counter.empty()
    counter.add(counts, RecordedBlock([record_of(request, signature)]).columns(), *owned)
    return counts, {one.name: one for one in counter.drift(counts)}


def watch_of(data: DataSketch | None, clock: Clock | None = None, **config: Any) -> InputWatch:
    watch = InputWatch(QualityConfig(**{"drift_share": 1.0, **config}), clock or Clock())
    info = SimpleNamespace(data_sketch=data)
    servable = SimpleNamespace(info=info, num_owned=lambda _table, _ids: None)
    table: Any = SimpleNamespace(servables={"1": servable})
    watch.table = lambda _: table
    return watch


def drift_of(watch: InputWatch, requests: Sequence[Answered]) -> dict[str, InputDrift]:
    for request in requests:
        watch.offer(RecordedBlock([request]))
    watch.close()
    return {one.name: one for one in watch.drift()["m", "1"]["1h"].inputs}


def test_requests_like_the_training_data_do_not_drift_and_others_do() -> None:
    like = drift_of(watch_of(sketch()), [answered(columns(i, 50)) for i in range(1, 41)])
    assert like["age"].missing == pytest.approx(0.2)
    assert like["site"].missing == pytest.approx(0.25, abs=0.05)
    for one in like.values():
        assert one.indices
        assert max(one.indices.values()) < 0.1, one
    rows = columns(1, 2000, shift=2.0)
    rows["site"] = [["another"]] * 2000
    rows["user"] = [[-1], [100], [5], [7]] * 500
    moved = drift_of(watch_of(sketch()), [answered(rows)])
    assert moved["age"].indices["numbers"] > 1
    assert moved["price"].indices["numbers"] < 0.1
    assert moved["site"].indices["values"] > 1
    assert moved["site"].missing == 0
    assert moved["user"].unknown == 0.5
    # A hashed text, and an ID that a mapping may know, are not called unknown.
    assert (moved["site"].unknown, moved["raw"].unknown) == (None, None)


def test_indices_are_those_of_all_values_together() -> None:
    data = sketch()
    requests = [columns(i, 30) for i in range(1, 21)]
    found = drift_of(watch_of(data), [answered(rows) for rows in requests])
    ages = np.concatenate([rows["age"] for rows in requests])
    expected = stability_index(data.dense["age"].shares, data.dense["age"].count(ages))
    assert found["age"].indices["numbers"] == pytest.approx(expected)


def test_without_a_sketch_or_enough_values_there_is_no_index() -> None:
    many = drift_of(watch_of(None), [answered(columns(1, 500))])
    assert all(not one.indices for one in many.values())
    assert many["age"].missing == pytest.approx(0.2)
    few = drift_of(watch_of(sketch()), [answered(columns(1, 30))])
    assert all(not one.indices for one in few.values())


def test_windows_forget_and_the_share_is_sampled() -> None:
    clock = Clock()
    watch = watch_of(None, clock, drift_share=0.25)
    for i in range(100):
        watch.offer(RecordedBlock([answered(columns(1, 2), draw=i / 100)]))
    watch.close()
    assert watch.counts() == {"compared": 25, "dropped": 0, "unreadable": 0}
    assert watch.drift()["m", "1"]["1h"].num_rows == 50
    clock.now_s += 5000
    assert set(watch.drift()["m", "1"]) == {"1d"}


def test_what_cannot_be_read_is_counted_and_what_has_no_room_dropped() -> None:
    watch = watch_of(None)
    good = answered(columns(1, 2))
    watch.offer(RecordedBlock([good, good._replace(message=b"\xff\xff")]))
    watch.offer(RecordedBlock([good, good._replace(outputs=[bytes(40 << 20)])]))
    watch.close()
    watch.offer(RecordedBlock([good]))
    assert watch.counts() == {"compared": 0, "dropped": 3, "unreadable": 2}


def test_versions_are_bounded_and_one_that_is_loaded_again_starts_over() -> None:
    watch = watch_of(None)
    for i in range(MAX_VERSIONS + 4):
        watch.offer(RecordedBlock([answered(columns(1, 2), version=str(i))]))
    again = Signature(dense=(), sparse=SIGNATURE.sparse[:1], outputs=())
    watch.offer(RecordedBlock([answered(columns(1, 3), version="9")._replace(signature=again)]))
    watch.close()
    found = watch.drift()
    assert {version for _, version in found} == {str(i) for i in range(4, MAX_VERSIONS + 4)}
    assert [one.name for one in found["m", "9"]["1h"].inputs] == ["user"]


def test_inputs_of_the_context_count_as_one_row_and_many_inputs_are_bounded() -> None:
    context = Context(dense={"d": [[1.0, float("nan")]]}, sparse={"user": [[3]], "site": [["x"]]})
    counts, found = counted(SIGNATURE, build_request({}, {"raw": [[1], [2], []]}, context=context))
    assert int(counts.numbers[0]) == 3
    assert found["price"].missing == 1.0
    assert found["raw"].missing == pytest.approx(1 / 3)
    wide = Signature(dense=(DenseInput(name="d", width=1000),), sparse=SIGNATURE.sparse[:1], outputs=())
    _, found = counted(wide, build_request({"d": np.zeros((2, 1000))}, {"user": [[1], [2]]}))
    assert len(found) == MAX_INPUTS
    assert [*found][:2] == ["d[0]", "d[1]"]


def test_texts_of_inputs_without_a_hash_are_numbers() -> None:
    _, found = counted(inputs_of("user"), build_request({}, {"user": [["5"], [" 100.0"]]}))
    assert found["user"].unknown == 0.5


def test_raw_ids_that_own_no_row_are_unknown() -> None:
    request = build_request({}, {"raw": [[7, 8], [9], []]})
    _, found = counted(inputs_of("raw"), request, lambda table, ids: int(((ids < 9) & (table == "r")).sum()))
    assert found["raw"].unknown == pytest.approx(1 / 3)
