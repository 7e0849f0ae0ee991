"""One item more on a history: computed on from what a context cache holds, and as a whole.

Shape letters: N number of IDs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.measure.bars import Bar
from benchmarks.measure.speed import DisagreementError
from benchmarks.models.sequences import Pointwise, SelfAttentive
from benchmarks.models.zoo import OUTPUT
from benchmarks.ranking.cases import CASES, build, export, requests
from recsys.artifact.load import LoadedArtifact, load_artifact
from serve.profiler.rounds import Contestant, RoundsConfig, run_rounds

#: How many times faster than the whole the new item alone is to be.
BAR = 5.0
# Items of the history with the new one, and places of the model: full histories begin at another item each time.
_NUM_ITEMS, _NUM_PLACES = 200, 224
_QUICK_ITEMS, _QUICK_PLACES = 10, 12
_CACHE_BYTES = 1 << 26
_WHOLE, _GROWN = "whole", "grown"
_MODELS: dict[str, Callable[..., nn.Module]] = {
    "SASRec-like 200": SelfAttentive,
    "HSTU-like 200": partial(Pointwise, num_layers=4),
}


@dataclass(frozen=True, kw_only=True)
class Grown:
    """A request with one candidate and a history that has one item more than the cache holds.

    Attributes:
        model: the model.
        num_items: of the history, with the new one.
        whole_ms: without a cache.
        grown_ms: with one.
        ratio: the median of the rounds' ratios.
        difference: the largest of a score.
    """

    model: str
    num_items: int
    whole_ms: float
    grown_ms: float
    ratio: float
    difference: float


def bars_of(results: Sequence[Grown]) -> list[Bar]:
    """Return the bars of what was measured."""
    return [Bar(f"{one.model}: one item more ÷ the whole", BAR, one.ratio) for one in results]


def measure_grown(folder: Path, num_rows: int, config: RoundsConfig, *, is_quick: bool) -> list[Grown]:
    """Measure the models over histories.

    Args:
        folder: Where their artifacts go.
        num_rows: Rows of the table; more than calls, of which each brings another item.
        config: How long.
        is_quick: Whether with short histories.

    Raises:
        DisagreementError: Scores differ, or an item was not computed on from the cache.
    """
    num_items, num_places = (_QUICK_ITEMS, _QUICK_PLACES) if is_quick else (_NUM_ITEMS, _NUM_PLACES)
    results = []
    for i, (name, make) in enumerate(_MODELS.items()):
        case = replace(CASES[name], make=partial(make, size=num_places), ids=(num_items,))
        path = export(case, build(case, num_rows), folder / f"grown-{i}")
        (request,) = requests(case, num_rows, num_candidates=1, num_requests=1)
        whole, grown = load_artifact(path), load_artifact(path)
        why = grown.cache_contexts(_CACHE_BYTES)
        if why:
            raise DisagreementError(f"{name}: the context cache is not used: {why}")
        before = replace(
            request, context_ids=request.context_ids[:-1], context_lengths=request.context_lengths - 1
        )
        with torch.inference_mode():
            grown.forward_ranking(*before.as_ranking())
            difference = _difference(whole, grown, request.as_ranking(), num_rows)
            timings = run_rounds(
                {
                    artifact: Contestant(_with_other_items(loaded, num_rows), [request.as_ranking()])
                    for artifact, loaded in ((_WHOLE, whole), (_GROWN, grown))
                },
                config,
            )
        counts = grown.contexts.counts()
        if difference != 0 or counts["hits"] or counts["grown"] != counts["misses"] - 1:
            raise DisagreementError(f"{name}: scores differ by {difference:.2g}; the cache counted {counts}")
        results.append(
            Grown(
                model=name,
                num_items=num_items,
                whole_ms=1e3 * timings[_WHOLE].median_s,
                grown_ms=1e3 * timings[_GROWN].median_s,
                ratio=statistics.median(timings[_GROWN].speedups_over(timings[_WHOLE])),
                difference=difference,
            )
        )
    return results


def _with_other_items(loaded: LoadedArtifact, num_rows: int) -> Callable[..., object]:
    """Return a call that brings another last item each time."""
    item = 0

    def call(*inputs: Tensor) -> object:
        nonlocal item
        item = (item + 1) % num_rows
        inputs[2][-1] = item
        return loaded.forward_ranking(*inputs)

    return call


def _difference(
    whole: LoadedArtifact, grown: LoadedArtifact, inputs: Sequence[Tensor], num_rows: int
) -> float:
    """Return the largest difference of a score over some new items, which the calls to be measured do not bring."""
    differences = []
    for item in range(num_rows - 1, num_rows - 5, -1):
        inputs[2][-1] = item
        scores = [one.forward_ranking(*inputs)[OUTPUT] for one in (whole, grown)]
        differences.append(float((scores[0] - scores[1]).abs().max()))
    return max(differences)
