"""Every benchmark with bars checks them in the same way."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from benchmarks import artifact, engine, planner
from benchmarks.measure.bars import MISSED, Bar, add_bar_options, bars_json, exit_status
from benchmarks.measure.processes import Seen
from benchmarks.measure.speed import SpeedResult, speed_bars
from benchmarks.planner import Ratios
from benchmarks.ranking import cli as ranking
from benchmarks.trainers import sharded
from benchmarks.trainers.case import TrainingCase
from benchmarks.trainers.public import cli as trainers

MET, MISSED_BAR = Bar("a", 1.0, 1.0), Bar("b", 1.0, 0.99)


@pytest.mark.parametrize(
    ("bar", "is_met"),
    [
        (MET, True),
        (MISSED_BAR, False),
        (Bar("c", 1.0, 1.0, is_most=True), True),
        (Bar("d", 1.0, 1.01, is_most=True), False),
        (Bar("e", 1.0, float("nan")), False),
        (Bar("f", 1.0, float("nan"), is_most=True), False),
    ],
)
def test_a_bar_is_met_or_missed(bar: Bar, is_met: bool) -> None:
    assert bar.is_met is is_met
    assert bars_json([bar]) == [
        {
            "text": bar.text,
            "bar": 1.0,
            "got": pytest.approx(bar.got, nan_ok=True),
            "is_most": bar.is_most,
            "is_met": is_met,
        }
    ]


@pytest.mark.parametrize(
    ("words", "bars", "status"),
    [([], [MISSED_BAR], 0), (["--check"], [MET, MISSED_BAR], MISSED), (["--check"], [MET], 0)],
)
def test_only_a_check_fails(words: list[str], bars: list[Bar], status: int) -> None:
    parser = argparse.ArgumentParser()
    add_bar_options(parser)
    assert exit_status(bars, parser.parse_args(words)) == status
    assert MISSED == 3


@pytest.mark.parametrize(
    "main", [artifact.main, engine.main, planner.main, ranking.main, trainers.main, sharded.main]
)
def test_every_benchmark_with_bars_takes_the_options(
    main: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "--check exit with 3 where a bar is missed" in said
    assert "--json print one JSON object and nothing else" in said
    assert "3 a bar is missed (with --check)" in said


def speed_result(batch_size: int, contestant: str, samples_per_s: float = 1.0) -> SpeedResult:
    return SpeedResult(
        batch_size=batch_size,
        contestant=contestant,
        samples_per_s=samples_per_s,
        ratio=1.2,
        ratio_low=1.0,
        ratio_high=2.0,
    )


@pytest.mark.parametrize("instructions", ["avx512", "amx", "none"])
def test_the_bars_of_the_artifact(instructions: str) -> None:
    names = ((1, "TorchRec"), (1, "float32"), (32, "float32"), (1, "bfloat16"), (3, "float32"))
    assert speed_bars([speed_result(*name) for name in names], instructions, "bfloat16") == [
        Bar("batch 1, float32: ÷ TorchRec", 1.5, 1.2),
        Bar("batch 32, float32: ÷ TorchRec", 1.1, 1.2),
    ]


def test_the_bars_of_the_artifact_with_avx2() -> None:
    results = [
        speed_result(128, "own float32", 100.0),
        speed_result(128, "own bfloat16", 97.0),
        speed_result(128, "own int8", 200.0),
        speed_result(8, "own bfloat16"),
    ]
    bars = speed_bars(results, "avx2", "float32")
    assert bars == [
        Bar("batch 128, own float32: ÷ TorchRec", 1.4, 1.2),
        Bar("batch 128, own int8: ÷ TorchRec", 2.3, 1.2),
        Bar("batch 128, own bfloat16: ÷ own float32", 0.98, 0.97),
    ]
    assert not any(bar.is_met for bar in bars)


def test_bfloat16_is_never_slower_than_float32() -> None:
    results = [
        speed_result(128, "DCNv2: own float32", 100.0),
        speed_result(128, "DCNv2: own bfloat16", 97.0),
    ]
    never_slower = Bar("batch 128, DCNv2: own bfloat16: ÷ own float32", 0.98, 0.97)
    to_peer = Bar("batch 128, DCNv2: own bfloat16: ÷ TorchRec", 2.0, 1.2)
    assert speed_bars(results, "amx", "bfloat16") == [to_peer, never_slower]
    assert speed_bars(results, "avx512", "float32") == [never_slower]


def test_the_bars_of_training() -> None:
    case = TrainingCase(sharding_type="row_wise", ids_per_bag=(1, 10))
    result = sharded.TrainingResult(
        case=case,
        peer_samples_per_s=1.0,
        samples_per_s=0.9,
        ratio=0.9,
        ratio_low=0.8,
        ratio_high=1.0,
        output_difference=0.0,
        weight_difference=0.0,
        profile={},
    )
    assert sharded.bars([result]) == [Bar("row_wise, 1 to 10 IDs per bag: ÷ TorchRec", 1.0, 0.9)]


def test_the_engine_is_not_compared_with_itself() -> None:
    found = engine.Found(best=[1000.0], alone_ms=[1.0])
    for load in engine.LOADS:
        for server, rate in (("default", 95.0), ("--executors 1", 100.0), ("--executors 2", 190.0)):
            figures = {"requests_per_s": rate, "latency_ms": {"p50": 1.0, "p99": 2.0}, "num_failed": 0}
            for name in {server, engine.PLAIN, engine.ECHO} if server == "default" else {server}:
                found.seen.setdefault((name, load), Seen()).add(name, figures)
    found.open_loop.append({"latency_ms": {"p50": 1.0, "p99": 2.0}, "is_valid": True})
    text = "1 row, 1 in flight: ÷ the best other number (--executors 1; the default's own gave 0.50)"
    assert engine.bars(found, num_cores=2)[0] == Bar(text, 0.95, 0.95)


def test_the_bars_of_the_planner() -> None:
    found = [Ratios(name="x", aim=1.05, ratios=(1.0, 1.2)), Ratios(name="y", aim=None, ratios=(3.0,))]
    assert planner.bars(found) == [Bar("worst rank ÷ x, the worst of 2 sets", 1.05, 1.2, is_most=True)]
