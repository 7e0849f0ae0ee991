"""The benchmark of rankings compares equals; nothing is said about speed.

Shape letters: B candidates.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.measure.speed import DisagreementError
from benchmarks.ranking.by_hand import scripted
from benchmarks.ranking.cases import CASES, build, requests
from benchmarks.ranking.cli import main
from benchmarks.ranking.speed import BY_HAND, ONCE, PEER, REPEATED, SCRIPTED, FormSpeed, bars_of, measure
from recsys import KeyedJaggedTensor
from recsys.kernels import operators
from serve.profiler.rounds import RoundsConfig

_SHORT = RoundsConfig(num_rounds=1, turn_s=0.001)


@pytest.mark.parametrize("name", CASES)
def test_models_by_hand_score_as_the_float_models(name: str) -> None:
    case = CASES[name]
    model = build(case, num_rows=50)
    by_hand = scripted(case.by_hand(model))
    for ranking in requests(case, num_rows=50, num_candidates=7, num_requests=2):
        dense, lengths, ids = ranking.as_rows(case, case.features)
        features = KeyedJaggedTensor(keys=case.features, lengths=lengths, values=ids)
        with torch.inference_mode():
            expected = model(dense, features)["score"]
            found = by_hand(*ranking.by_hand())
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        assert expected.std() > 1e-5


def test_rows_repeat_the_context() -> None:
    case = replace(CASES["DIN-like 50"], ids=(3, 1, 1, 1, 1, 1, 1))
    ranking = requests(case, num_rows=50, num_candidates=2, num_requests=1)[0]
    dense, lengths, ids = ranking.as_rows(case, ["item", "history"])
    assert torch.equal(dense[0], dense[1])
    assert lengths.tolist() == [1, 1, 3, 3]
    assert ids.tolist() == [*ranking.items[0].tolist(), *ranking.context_ids[:3].tolist() * 2]


def _result(form: str, ratio: float) -> FormSpeed:
    return FormSpeed(model="DLRM", form=form, ms=1, ratio=ratio, ratio_low=1, ratio_high=1, difference=0)


def test_bars_are_of_all_forms_but_those_that_compute_the_context_once() -> None:
    bars = bars_of([_result(form, 1.3) for form in (ONCE, REPEATED, PEER, BY_HAND, SCRIPTED)])
    assert [(bar.bar, bar.is_met) for bar in bars] == [(1.5, False), (1.5, False), (1.2, True)]


class _Wrong(torch.nn.Module):
    def forward(self, dense: torch.Tensor, user: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        return torch.zeros(items.size(1)) * dense.sum() * user.sum()


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:TorchScript will treat type annotations")
def test_forms_that_disagree_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchrec", reason="compares with torchrec, which is not installed")
    wrong = replace(CASES["two towers"], by_hand=lambda _: _Wrong())
    monkeypatch.setitem(CASES, "two towers", wrong)
    with pytest.raises(DisagreementError, match=r"two towers: scores of 'by hand' differ by 0\.5"):
        measure("two towers", tmp_path, 50, 3, _SHORT)


def test_an_unknown_model_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--models", "DLRM,BERT"])
    assert "--models: got 'BERT', expected some of SASRec-like" in capsys.readouterr().err


@pytest.mark.peer
@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torchrec", reason="compares with torchrec, which is not installed")
    if operators.why_missing():
        pytest.skip("the native engine is not built")
    options = [
        "--quick",
        "--json",
        "--models",
        "DLRM",
        "--rounds",
        "1",
        "--seconds",
        "0.1",
        "--dir",
        str(tmp_path),
    ]
    assert main(options) == 0
    result = json.loads(capsys.readouterr().out)
    assert [one["form"] for one in result["speed"]] == [ONCE, REPEATED, PEER, BY_HAND, SCRIPTED]
    assert all(one["difference"] <= 1e-5 for one in result["speed"])
    assert len(result["bars"]) == 3
    assert [(one["artifact"], one["in_flight"]) for one in result["served"]] == [
        (artifact, load) for load in (1, 8) for artifact in ("with --context", "without")
    ]
    assert all(one["requests_per_s"] > 0 for one in result["served"])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_histories_that_grow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torchrec", reason="the command compares with torchrec, which is not installed")
    if operators.why_missing():
        pytest.skip("the native engine is not built")
    assert main(["--growing", "--quick", "--json", "--rounds", "1", "--dir", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["speed"], result["served"], result["cached"]) == ([], [], [])
    assert [(one["num_items"], one["difference"]) for one in result["grown"]] == [(10, 0), (10, 0)]
    assert [bar["bar"] for bar in result["bars"]] == [5, 5]


@pytest.mark.peer
@pytest.mark.slow
def test_users_who_come_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torchrec", reason="the command compares with torchrec, which is not installed")
    if operators.why_missing():
        pytest.skip("the native engine is not built")
    options = ["--cache", "--quick", "--json", "--models", "DLRM", "--rounds", "1", "--seconds", "0.1"]
    assert main([*options, "--dir", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["speed"], result["served"], result["bars"]) == ([], [], [])
    without, cached = result["cached"]
    assert (without["cache"], without["max_bytes"], without["hit_rate"]) == ("without a cache", 0, None)
    assert 0 < cached["cache_bytes"] <= cached["max_bytes"]
    assert 0 < cached["hit_rate"] < 1
