"""Labels for answers: which are taken, and what is measured of them, against the exact metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recsys.inputs.signature import Output, Signature
from recsys.metrics.exact import measure
from serve.config.settings import QualityConfig
from serve.engine.records import ShadowPair, draw_of
from serve.engine.reference.answers import Answered, RecordedBlock
from serve.engine.routes import Plan, RouteTable
from serve.quality.labels import FeedbackItem
from serve.quality.monitor import MAX_SERIES, LabelledQuality, Series, scored
from serve.quality.store import KeptAnswer

SCORE = (Output(name="score", shape=()),)
TWO = (Output(name="click", shape=()), Output(name="buy", shape=(1,)))
Floats = NDArray[np.float32]


class Clock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def quality_of(clock: Clock | None = None, plan: Plan | None = None, **config: Any) -> LabelledQuality:
    quality = LabelledQuality(QualityConfig(**config), clock or Clock())
    table = RouteTable(model="m", plan=plan or Plan(serving="1"))
    quality.table = lambda model: table if model == "m" else None
    return quality


def answered(
    request_id: str,
    scores: Sequence[float] | Floats,
    version: str = "1",
    outputs: tuple[Output, ...] = SCORE,
    draw: float | None = None,
) -> RecordedBlock:
    data = np.asarray(scores, dtype="<f4")
    record = Answered(
        time_s=0.0,
        protocol="recsys",
        model="m",
        version=version,
        request_id=request_id,
        num_rows=len(data),
        draw=draw_of(request_id) if draw is None else draw,
        message=None,
        outputs=[data.tobytes() for _ in outputs],
        signature=Signature(dense=(), sparse=(), outputs=outputs),
    )
    return RecordedBlock([record])


def item(request_id: str, values: Sequence[float], label: str = "click", **more: Any) -> FeedbackItem:
    return FeedbackItem(request_id=request_id, labels={label: values}, **more)


def test_metrics_of_labels_are_those_of_the_exact_module() -> None:
    random = np.random.default_rng(0)
    quality = quality_of()
    scores, labels = [], []
    for i in range(400):
        p = random.beta(1, 8, size=int(random.integers(1, 12))).astype(np.float32)
        y = (random.random(len(p)) < p).astype(np.float64)
        quality.answered(answered(f"r{i}", p))
        quality.take([item(f"r{i}", y.tolist())], "grpc")
        scores.append(p)
        labels.append(y)
    p, y = np.concatenate(scores).astype(np.float64), np.concatenate(labels)
    exact = measure(np.log(p) - np.log1p(-p), y)
    (series,) = quality.metrics()
    assert series == Series("m", "1", "serving", "click")
    for window in ("5m", "1h", "1d"):
        got = quality.metrics()[series][window]
        assert got.num_rows == len(y)
        assert got.ne == pytest.approx(exact.ne, rel=1e-9)
        assert got.calibration == pytest.approx(exact.calibration, rel=1e-9)
        assert got.mean_label == pytest.approx(y.mean())
        assert got.auc is not None
        assert exact.auc is not None
        assert got.auc_error is not None
        assert abs(got.auc - exact.auc) <= got.auc_error + 1e-12 < 0.01


def test_logits_are_scores_too() -> None:
    quality = quality_of(scores="logit")
    quality.answered(answered("a", [-2.0, 3.0]))
    quality.take([item("a", [0, 1])], "grpc")
    (by_window,) = quality.metrics().values()
    exact = measure(np.asarray([-2.0, 3.0]), np.asarray([0.0, 1.0]))
    assert by_window["1h"].loss == pytest.approx(exact.loss)


def test_labels_leave_the_windows_by_when_they_came() -> None:
    clock = Clock()
    quality = quality_of(clock, within_s=3600.0)
    quality.answered(answered("a", [0.5]))
    clock.now_s += 1800
    quality.take([item("a", [1])], "grpc")
    (by_window,) = quality.metrics().values()
    assert set(by_window) == {"5m", "1h", "1d"}
    clock.now_s += 400
    (by_window,) = quality.metrics().values()
    assert set(by_window) == {"1h", "1d"}
    clock.now_s += 2 * 86400
    assert quality.metrics() == {}


def test_arms_are_the_versions_parts_in_the_routing_when_they_answered() -> None:
    quality = quality_of(plan=Plan(serving="1", canary="2", canary_share=0.5, shadow="3", shadow_share=1.0))
    for version in ("1", "2", "9"):
        quality.answered(answered(version, [0.5], version))
    quality.shadowed(
        ShadowPair(
            model="m",
            version="1",
            shadow="3",
            request_id="1",
            num_rows=1,
            expected=[np.float32(0.5).tobytes()],
            got=[np.float32(0.25).tobytes()],
            expected_outputs=SCORE,
            got_outputs=SCORE,
        )
    )
    taken = quality.take([item(name, [1]) for name in ("1", "2", "9")], "grpc")
    # A label for a request that two versions answered counts once.
    assert taken.counts == {"taken": 3}
    assert {(s.version, s.arm) for s in quality.metrics()} == {
        ("1", "serving"),
        ("2", "canary"),
        ("9", "named"),
        ("3", "shadow"),
    }


def test_requests_without_an_id_or_outside_the_share_are_not_kept() -> None:
    share = draw_of("out")
    quality = quality_of(share=share)
    quality.answered(answered("", [0.5], draw=0.0))
    quality.answered(answered("out", [0.5]))
    inside = next(name for name in map(str, range(100)) if draw_of(name) < share)
    quality.answered(answered(inside, [0.5]))
    taken = quality.take([item(name, [1]) for name in ("out", inside)], "grpc")
    assert taken.counts == {"unknown": 1, "taken": 1}
    assert quality.answers()["kept"] == 1


def test_labels_are_taken_late_unknown_and_doubled_by_their_rules() -> None:
    clock = Clock()
    quality = quality_of(clock, within_s=10.0)
    quality.answered(answered("a", [0.1, 0.2, 0.3]))
    taken = quality.take([item("a", [1, 0], rows=[2, 0]), item("b", [1])], "grpc")
    assert taken.counts == {"taken": 2, "unknown": 1}
    # The first row that has the label counts; another label is another matter.
    taken = quality.take([item("a", [0, 0, 0], "click"), item("a", [1], "buy", rows=[0])], "rest")
    assert taken.counts == {"taken": 2, "doubled": 2}
    assert [(place, result) for place, result, _ in taken.refused] == [(0, "doubled")]
    clock.now_s += 11
    taken = quality.take([item("a", [1], rows=[1])], "kafka")
    assert taken.counts == {"late": 1}
    assert quality.results() == {
        "grpc": {"taken": 2, "late": 0, "unknown": 1, "doubled": 0, "invalid": 0},
        "rest": {"taken": 2, "late": 0, "unknown": 0, "doubled": 2, "invalid": 0},
        "kafka": {"taken": 0, "late": 1, "unknown": 0, "doubled": 0, "invalid": 0},
    }
    clicks = quality.metrics()[Series("m", "1", "serving", "click")]["1h"]
    assert (clicks.num_rows, clicks.mean_label) == (3, pytest.approx(1 / 3))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (item("", [1, 0]), "request_id: got an empty text"),
        (FeedbackItem(request_id="a", labels={}), "labels: got none"),
        (item("a", [1, 0], ""), "labels: got the name ''"),
        (item("a", [1, 0], "x" * 200), "expected a text of 1 to 128 bytes"),
        (item("a", [1, 0], "\ud800"), "of UTF-8"),
        (item("a", []), "got no value, expected 0 or 1"),
        (item("a", [0.5, 1]), "got 0.5, expected 0 or 1"),
        (item("a", [float("nan"), 1]), "got nan, expected 0 or 1"),
        (item("a", [1]), "got 1 values, expected one for each of 2 rows of the request, or rows beside them"),
        (item("a", [1], rows=[0, 1]), "got 1 values, expected one for each of 2 rows"),
        (item("a", [1, 1], rows=[1, 1]), "rows: got a row twice"),
        (item("a", [1], rows=[2]), "rows: got 2, expected 0 to 1: the request had 2 rows"),
        (item("a", [1], rows=[-1]), "rows: got -1"),
        (item("a", [1, 0], "like"), "labels: got 'like', expected an output of the model: 'click', 'buy'"),
    ],
)
def test_wrong_items_are_refused_wholly_and_others_are_taken(wrong: FeedbackItem, text: str) -> None:
    quality = quality_of()
    quality.answered(answered("a", [0.5, 0.25], outputs=TWO))
    quality.answered(answered("b", [0.5, 0.25], outputs=TWO))
    taken = quality.take([wrong, item("b", [1, 0], "buy")], "grpc")
    ((place, result, message),) = taken.refused
    assert (place, result) == (0, "invalid")
    assert text in message
    assert taken.counts["taken"] == 2
    assert [series.label for series in quality.metrics()] == ["buy"]


def test_an_item_may_name_its_model() -> None:
    quality = quality_of()
    quality.answered(answered("a", [0.5]))
    assert quality.take([item("a", [1], model="other")], "grpc").counts == {"unknown": 1}
    assert quality.take([item("a", [1], model="m")], "grpc").counts == {"taken": 1}


def test_labels_of_any_names_stay_within_the_bound() -> None:
    quality = quality_of()
    for i in range(MAX_SERIES + 10):
        quality.answered(answered(str(i), [0.5]))
        quality.take([item(str(i), [1], f"label {i}")], "grpc")
    found = {series.label for series in quality.metrics()}
    assert found == {f"label {i}" for i in range(10, MAX_SERIES + 10)}


def test_scores_are_outputs_with_one_finite_float_for_each_row() -> None:
    outputs = (
        Output(name="score", shape=()),
        Output(name="one", shape=(1,)),
        Output(name="vector", shape=(2,)),
        Output(name="item", shape=(), dtype="int64"),
        Output(name="nan", shape=()),
    )
    two = np.asarray([0.25, 0.5], dtype="<f4").tobytes()
    nan = np.asarray([0.25, np.nan], dtype="<f4").tobytes()
    (record,) = answered("a", [0.25, 0.5], outputs=outputs).records
    record = record._replace(outputs=[two, two, two * 2, two * 2, nan])
    other = record._replace(request_id="b", draw=draw_of("b"), outputs=[nan, two, two * 2, two * 2, two])
    without = record._replace(request_id="c", outputs=[nan, nan, two * 2, two * 2, nan])
    empty = record._replace(request_id="d", num_rows=0, outputs=[b""] * 5)
    found = scored(RecordedBlock([record, empty, other, without]), 1.0, "serving")
    assert found is not None
    assert [KeptAnswer(0, found, place).request_id for place in range(len(found))] == [b"a", b"b"]
    assert [{*KeptAnswer(0, found, place).scores} for place in range(2)] == [{"score", "one"}, {"one", "nan"}]
    assert scored(RecordedBlock([empty, without]), 1.0, "serving") is None
