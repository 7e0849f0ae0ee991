"""Quality of a server's answers: keeps scores, takes labels for them, and sums both up over windows.

Shape letters: B rows of a request.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recsys.inputs.signature import ROWS_FIRST, Output
from recsys.metrics.binned import BinnedMetrics, BinnedScores, logits_of
from serve.config.settings import QualityConfig
from serve.engine.answered import AnsweredBlock, selected
from serve.engine.records import ShadowPair, draw_of
from serve.engine.routes import RouteTable
from serve.errors import listed, short
from serve.quality.labels import RESULTS, FeedbackItem, Taken, wrong_name
from serve.quality.store import AnswerStore, Found, KeptAnswer, ScoredBlock, key_of
from serve.quality.windows import Windows

#: Bounds the memory: each takes up to 0.7 MB. Of more, the one that got no label for the longest time goes.
MAX_SERIES = 64
#: Where labels come from.
SOURCES = ("grpc", "rest", "kafka")


class Series(NamedTuple):
    """What is measured together."""

    model: str
    version: str
    arm: str
    label: str


class LabelledQuality:
    """Answers, labels and their windows. Thread-safe.

    Args:
        config: the settings.
        now: returns the present time in seconds; it never goes back.

    Attributes:
        table: returns the route table of a model; None if it has none. Set when the routing exists.
        num_dropped: returns the number of records of answers that the engine dropped. Set when the engine exists.
    """

    def __init__(self, config: QualityConfig, now: Callable[[], float] = time.monotonic) -> None:
        self._are_logits = config.scores == "logit"
        self._share = config.share
        self._now = now
        self.table: Callable[[str], RouteTable | None] = lambda _: None
        self.num_dropped: Callable[[], int] = lambda: 0
        self._store = AnswerStore(config, now)
        self._lock = threading.Lock()
        self._series: OrderedDict[Series, Windows[BinnedScores]] = OrderedDict()
        self._results = {source: Counter[str]() for source in SOURCES}

    def answered(self, block: AnsweredBlock) -> None:
        """Keep the scores of the answers that have an ID and are in the share."""
        answers = scored(block, self._share, self._arm_of(block.model, block.version))
        if answers is not None:
            self._store.put(answers)

    def shadowed(self, pair: ShadowPair) -> None:
        """Keep the scores of a shadow, as ``answered`` does."""
        if pair.request_id and draw_of(pair.request_id) < self._share:
            answers = _scored_shadow(pair)
            if answers is not None:
                self._store.put(answers)

    def _arm_of(self, model: str, version: str) -> str:
        table = self.table(model)
        if table is None:
            return "named"
        plan = table.plan
        if version == plan.serving:
            return "serving"
        return "canary" if version == plan.canary else "named"

    def take(self, items: Sequence[FeedbackItem], source: str) -> Taken:
        """Take labels.

        Args:
            items: of one call.
            source: one of ``SOURCES``.
        """
        taken = Taken()
        scores: dict[Series, list[tuple[NDArray[np.float64], NDArray[np.float64]]]] = {}
        with self._lock:
            found = self._store.get([item.request_id for item in items])
            for i, item in enumerate(items):
                self._take_item(i, item, found[i], taken, scores)
            for series, parts in scores.items():
                self._add(series, *map(np.concatenate, zip(*parts, strict=True)))
            self._results[source].update(taken.counts)
        return taken

    def refuse(self, source: str) -> None:
        """Count what holds no labels that can be read as one invalid label."""
        with self._lock:
            self._results[source]["invalid"] += 1

    def results(self) -> dict[str, dict[str, int]]:
        """Return the number of labels by source and result."""
        with self._lock:
            return {
                source: {result: counts[result] for result in RESULTS}
                for source, counts in self._results.items()
            }

    def answers(self) -> dict[str, int]:
        """Return the number of answers by what became of them."""
        return {**self._store.counts(), "queue_full": self.num_dropped()}

    @property
    def num_bytes(self) -> int:
        """Memory of the answers that are kept."""
        return self._store.num_bytes

    def metrics(self) -> dict[Series, dict[str, BinnedMetrics]]:
        """Return the metrics by series and window, of windows with labels."""
        with self._lock:
            totals = {series: windows.totals() for series, windows in self._series.items()}
        found = {
            series: {name: metrics for name, total in by_window.items() if (metrics := total.metrics())}
            for series, by_window in totals.items()
        }
        return {series: by_window for series, by_window in found.items() if by_window}

    def _add(self, series: Series, logits: NDArray[np.float64], labels: NDArray[np.float64]) -> None:
        windows = self._series.get(series)
        if windows is None:
            windows = self._series[series] = Windows(BinnedScores, self._now)
            if len(self._series) > MAX_SERIES:
                self._series.popitem(last=False)
        self._series.move_to_end(series)
        windows.add(lambda scores: scores.add(logits, labels))

    def _take_item(
        self,
        place: int,
        item: FeedbackItem,
        found: Found,
        taken: Taken,
        scores: dict[Series, list[tuple[NDArray[np.float64], NDArray[np.float64]]]],
    ) -> None:
        wrong = _wrong_item(item)
        if wrong:
            taken.refuse(place, "invalid", item.num_labels, wrong)
            return
        answers = [a for a in found.answers if item.model in ("", a.block.model)]
        if not answers:
            result, text = ("late", "kept no longer") if found.has_expired else ("unknown", "not kept")
            reason = f"request_id: got {short(item.request_id)}, whose answer is {text}"
            taken.refuse(place, result, item.num_labels, reason)
            return
        # Models that answered requests of one ID may have other outputs and rows.
        reasons = [_wrong_for(item, answer) for answer in answers]
        answers = [answer for answer, wrong in zip(answers, reasons, strict=True) if not wrong]
        if not answers:
            taken.refuse(place, "invalid", item.num_labels, reasons[0])
            return
        for label, values in item.labels.items():
            is_new = np.zeros(len(values), dtype=np.bool_)
            for answer in answers:
                is_new |= self._label(answer, label, item.rows, values, scores)
            num_new = int(is_new.sum())
            taken.counts["taken"] += num_new
            if num_new < len(values):
                text = f"labels[{short(label)}]: got it again for rows that have it; the first one counts"
                taken.refuse(place, "doubled", len(values) - num_new, text)

    def _label(
        self,
        answer: KeptAnswer,
        label: str,
        rows: Sequence[int],
        values: Sequence[float],
        scores: dict[Series, list[tuple[NDArray[np.float64], NDArray[np.float64]]]],
    ) -> NDArray[np.bool_]:
        """Label rows of one answer that have no label of this name; return which those are."""
        marks = self._store.marks(answer, label)
        at = np.asarray(rows, dtype=np.int64) if rows else np.arange(answer.num_rows)
        is_new: NDArray[np.bool_] = ~marks[at]
        marks[at] = True
        got = answer.scores[_output_of(answer.scores, label)][at][is_new]
        series = Series(answer.block.model, answer.block.version, answer.block.arm, label)
        if len(got):
            logits = got.astype(np.float64) if self._are_logits else logits_of(got)
            scores.setdefault(series, []).append((logits, np.asarray(values, dtype=np.float64)[is_new]))
        return is_new


def _output_of(scores: Mapping[str, NDArray[np.float32]], label: str) -> str:
    """Return the output that a label is for: that of its name, or the only one; empty for none."""
    if label in scores:
        return label
    return next(iter(scores)) if len(scores) == 1 else ""


def _wrong_item(item: FeedbackItem) -> str:
    """Return what is wrong with an item by itself; empty if nothing is."""
    if not item.request_id:
        return "request_id: got an empty text, expected that of the request"
    if not item.labels:
        return "labels: got none, expected at least one"
    if len(set(item.rows)) < len(item.rows):
        return "rows: got a row twice, expected each once"
    for name, values in item.labels.items():
        if wrong := wrong_name(name):
            return wrong
        if not values or not set(values) <= {0, 1}:
            other = next((value for value in values if value not in (0, 1)), None)
            return (
                f"labels[{short(name)}]: got {'no value' if other is None else short(other)}, expected 0 or 1"
            )
        if item.rows and len(values) != len(item.rows):
            return f"labels[{short(name)}]: got {len(values)} values, expected one for each of {len(item.rows)} rows"
    return ""


def _wrong_for(item: FeedbackItem, answer: KeptAnswer) -> str:
    """Return what is wrong with an item for an answer; empty if nothing is."""
    row = next((row for row in item.rows if not 0 <= row < answer.num_rows), None)
    if row is not None:
        return f"rows: got {row}, expected 0 to {answer.num_rows - 1}: the request had {answer.num_rows} rows"
    for name, values in item.labels.items():
        if not item.rows and len(values) != answer.num_rows:
            return (
                f"labels[{short(name)}]: got {len(values)} values, expected one for each of {answer.num_rows} rows of "
                "the request, or rows beside them"
            )
        if not _output_of(answer.scores, name):
            return (
                f"labels: got {short(name)}, expected an output of the model: {listed(list(answer.scores))}"
            )
    return ""


Bools = NDArray[np.bool_]


def scored(block: AnsweredBlock, share: float, arm: str) -> ScoredBlock | None:
    """Return the answers that have an ID, scores, and a draw below ``share``; None if none has.

    An answer's scores are its float outputs with one finite number for each row.
    """
    outputs = block.signature.outputs
    columns = block.columns()._replace(dense=(), sparse=())
    requests = columns.requests
    has = {
        output.name: _has_scores(numbers, requests.num_rows)
        for output, numbers in zip(outputs, requests.outputs, strict=True)
        if _is_score(output)
    }
    takes = (requests.draws < share) & (np.diff(requests.id_offsets) > 0) & (requests.num_rows > 0)
    takes &= np.any([*has.values(), np.zeros_like(takes)], axis=0)
    taken = selected(columns, takes, outputs)
    if taken is None:
        return None
    requests = taken.requests
    row_offsets = np.zeros(len(requests.num_rows) + 1, np.int64)
    np.cumsum(requests.num_rows, out=row_offsets[1:])
    return ScoredBlock(
        model=block.model,
        version=block.version,
        arm=arm,
        keys=requests.draws.view(np.uint64).copy(),
        id_offsets=requests.id_offsets.astype(np.int64),
        ids=requests.ids.tobytes(),
        row_offsets=row_offsets,
        scores={
            output.name: numbers.copy()
            for output, numbers in zip(outputs, requests.outputs, strict=True)
            if output.name in has
        },
        has={name: marks[takes] for name, marks in has.items() if not marks[takes].all()},
    )


def _scored_shadow(pair: ShadowPair) -> ScoredBlock | None:
    """Return the answer of a shadow, whose request has an ID; None if it has no scores."""
    scores = {}
    for output, data in zip(pair.got_outputs, pair.got, strict=True):
        if _is_score(output) and pair.num_rows and len(data) == 4 * pair.num_rows:
            numbers = np.frombuffer(data, "<f4")
            if np.isfinite(numbers).all():
                scores[output.name] = numbers
    if not scores:
        return None
    name = pair.request_id.encode()
    return ScoredBlock(
        model=pair.model,
        version=pair.shadow,
        arm="shadow",
        keys=np.array([key_of(pair.request_id)]),
        id_offsets=np.array([0, len(name)], np.int64),
        ids=name,
        row_offsets=np.array([0, pair.num_rows], np.int64),
        scores=scores,
    )


def _is_score(output: Output) -> bool:
    return not output.is_integer and output.batch_dims == ROWS_FIRST and output.shape in ((), (1,))


def _has_scores(numbers: NDArray[np.float32], num_rows: NDArray[np.int64]) -> Bools:
    """Return which requests have finite numbers alone, bool ``[Q]``."""
    has = np.ones(len(num_rows), np.bool_)
    is_finite = np.isfinite(numbers)
    if not is_finite.all():
        has[np.repeat(np.arange(len(num_rows)), num_rows)[~is_finite]] = False
    return has
