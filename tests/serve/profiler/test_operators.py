"""Times of operators: what the profiler records of a graph, and the medians of it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from recsys.scripting import torchscript
from serve.profiler.operators import (
    Recorded,
    Recording,
    Took,
    operator_times,
    record,
    undisturbed,
    usual_overhead_us,
)
from serve.profiler.work import Work


class Layers(nn.Module):
    """Two layers of one shape and one of another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x)))


def recorded(name: str, us: float, num_inner: int = 0) -> Recorded:
    return Recorded(name=name, work=Work(num_bytes=40), us=us, num_inner=num_inner)


def test_a_graphs_operators_are_recorded_with_their_own_arguments() -> None:
    module = torchscript.freeze(torch.jit.script(Layers().eval()))
    recording = record(module, [(torch.zeros(4, 6),)] * 5)
    forwards = recording.forwards
    assert recording.call_us > 0
    assert 2 <= len(forwards) <= 5
    assert all([each.name for each in calls] == ["aten::linear"] * 3 for calls in forwards)
    times = {(each.name, each.label): each for each in operator_times(forwards, 0.0)}
    assert {key: each.calls for key, each in times.items()} == {
        ("aten::linear", "6 → 6"): 2.0,
        ("aten::linear", "6 → 2"): 1.0,
    }
    assert times["aten::linear", "6 → 6"].work.flops == 2 * (2 * 4 * 6 * 6)
    assert all(each.us > 0 for each in times.values())


def test_each_place_in_the_graph_has_its_median() -> None:
    # Another process held up one call of each.
    forwards = [
        [recorded("aten::a", 1.0), recorded("aten::b", 10.0), recorded("aten::a", 3.0)],
        [recorded("aten::a", 1.0), recorded("aten::b", 999.0), recorded("aten::a", 3.0)],
        [recorded("aten::a", 500.0), recorded("aten::b", 10.0), recorded("aten::a", 3.0)],
    ]
    found = operator_times(forwards, 0.0)
    assert [(each.name, each.calls, each.us) for each in found] == [("aten::b", 1, 10.0), ("aten::a", 2, 4.0)]
    assert found[1].work == Work(num_bytes=80)


def test_the_profilers_own_time_within_is_taken_off() -> None:
    found = operator_times([[recorded("aten::a", 5.0, 4)], [recorded("aten::a", 5.0, 4)]], 0.5)
    assert found[0].us == pytest.approx(3.0)
    [none] = operator_times([[recorded("aten::a", 1.0, 4)]], 0.5)
    assert none.us == 0.0


def test_an_operator_that_not_every_call_reaches_counts_in_part() -> None:
    found = operator_times([[recorded("aten::a", 4.0)], []], 0.0)
    assert (found[0].calls, found[0].us) == (0.5, 2.0)


def test_the_profilers_own_time_is_the_difference_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0.0 <= usual_overhead_us() < 100.0
    monkeypatch.setattr("serve.profiler.operators.usual_overhead_us", lambda: 0.5)
    # The graph itself, an operator, and four within it.
    recording = Recording(forwards=[[recorded("aten::a", 5.0, 4)]], call_us=16.0)
    found = [recording.overhead_us(plain_us) for plain_us in (10.0, 15.0, 1.0)]
    assert found == [pytest.approx(1.0), 0.5, 2.0]


def test_calls_that_lost_their_processor_do_not_count() -> None:
    took = [Took(1.0, 1.0), Took(1.0, 4.0), Took(1.0, 1.01), Took(1.0, 1.5)]
    assert undisturbed(took) == [0, 2]
    # Where all did, those that lost it for the shortest time do.
    assert undisturbed([Took(1.0, 3.0), Took(1.0, 2.0), *[Took(1.0, 9.0)] * 4]) == [0, 1]
