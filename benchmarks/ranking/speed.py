"""Milliseconds of a request in every form of a model, in turns, and how far their scores are apart.

Shape letters: B candidates.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure.bars import Bar
from benchmarks.measure.speed import DisagreementError
from benchmarks.models.zoo import OUTPUT
from benchmarks.ranking.by_hand import scripted
from benchmarks.ranking.cases import CASES, Case, build, export, peer, requests
from recsys.artifact.load import LoadedArtifact, load_artifact
from serve.profiler.rounds import Contestant, RoundsConfig, run_rounds

ONCE, REPEATED, PEER, BY_HAND = "context once", "rows repeated", "TorchRec, rows repeated", "by hand"
SCRIPTED = "context once, TorchScript"
#: How many times faster than the module by hand a request is to be.
_BY_HAND_BAR = 1.2
#: The largest difference of a probability to the peer's: the numbers are the same, the order of additions is not.
AGREEMENT = 1e-5
# Calls that take longer are those of whole histories for each row.
_LONG_CALL_WARM_UPS = 1


@dataclass(frozen=True, kw_only=True)
class FormSpeed:
    """One form of a model.

    Attributes:
        model: its name in ``CASES``.
        form: the form.
        ms: of a request, the median of the rounds.
        ratio: how many times faster ``ONCE`` is: the median of the rounds' ratios.
        ratio_low: a quarter of the rounds gave a lower ratio.
        ratio_high: a quarter of the rounds gave a higher one.
        difference: the largest of a score to ``ONCE``'s.
    """

    model: str
    form: str
    ms: float
    ratio: float
    ratio_low: float
    ratio_high: float
    difference: float


def bars_of(results: Sequence[FormSpeed]) -> list[Bar]:
    """Return the bars of what was measured."""
    found = []
    for result in results:
        bar = {REPEATED: CASES[result.model].bar, PEER: CASES[result.model].bar, BY_HAND: _BY_HAND_BAR}
        if result.form in bar:
            found.append(Bar(f"{result.model}: {ONCE} ÷ {result.form}", bar[result.form], result.ratio))
    return found


def measure(
    name: str, folder: Path, num_rows: int, num_candidates: int, config: RoundsConfig
) -> list[FormSpeed]:
    """Measure all forms of a model.

    Args:
        name: That of the model in ``CASES``.
        folder: Where its artifact goes.
        num_rows: Rows of each table.
        num_candidates: B.
        config: How long.

    Raises:
        DisagreementError: Their scores differ.
    """
    case = CASES[name]
    forms = _contestants(case, folder / "artifact", num_rows, num_candidates)
    differences = _differences(name, forms)
    config = replace(config, num_warm_up_calls=_LONG_CALL_WARM_UPS)
    with torch.inference_mode():
        timings = run_rounds(forms, config)
    results = []
    for form, timing in timings.items():
        ratios = timings[ONCE].speedups_over(timing)
        quarter = len(ratios) // 4
        results.append(
            FormSpeed(
                model=name,
                form=form,
                ms=1e3 * timing.median_s,
                ratio=statistics.median(ratios),
                ratio_low=ratios[quarter],
                ratio_high=ratios[-1 - quarter],
                difference=differences[form],
            )
        )
    return results


def _contestants(case: Case, path: Path, num_rows: int, num_candidates: int) -> dict[str, Contestant]:
    model = build(case, num_rows)
    artifact = load_artifact(export(case, model, path))
    rankings = requests(case, num_rows, num_candidates)
    theirs, features = peer(case, model, num_rows, rankings[0])
    own_features = [sparse.name for sparse in artifact.signature.sparse]
    as_rankings = [ranking.as_ranking() for ranking in rankings]
    return {
        ONCE: Contestant(_scores(artifact.forward_ranking), as_rankings),
        REPEATED: Contestant(
            _scores(artifact.forward), [one.as_rows(case, own_features) for one in rankings]
        ),
        PEER: Contestant(_scores(theirs), [one.as_peer(case, features) for one in rankings]),
        BY_HAND: Contestant(scripted(case.by_hand(model)), [one.by_hand() for one in rankings]),
        SCRIPTED: Contestant(_scores(_ranking_script(artifact)), as_rankings),
    }


def _ranking_script(artifact: LoadedArtifact) -> Callable[..., Mapping[str, Tensor]]:
    script = artifact.ranking
    assert script is not None
    return script


def _scores(call: Callable[..., Mapping[str, Tensor]]) -> Callable[..., Tensor]:
    def scores(*inputs: Any) -> Tensor:
        return call(*inputs)[OUTPUT]

    return scores


def _differences(name: str, forms: Mapping[str, Contestant]) -> dict[str, float]:
    """Return the largest difference of each form's scores to those with the context once."""
    found: dict[str, Tensor] = {}
    with torch.inference_mode():
        for form, contestant in forms.items():
            scores = contestant.call(*contestant.batches[0])
            assert isinstance(scores, Tensor)
            found[form] = scores
    differences = {form: float((scores - found[ONCE]).abs().max()) for form, scores in found.items()}
    for form, difference in differences.items():
        if not difference <= AGREEMENT:
            raise DisagreementError(
                f"{name}: scores of {form!r} differ by {difference:.2g} from those of {ONCE!r}, expected at most "
                f"{AGREEMENT}"
            )
    return differences
