"""Contestants take turns."""

from __future__ import annotations

from serve.profiler.rounds import Contestant, RoundsConfig, Timing, run_rounds


def test_turns_rotate_and_every_batch_is_used() -> None:
    seen: dict[str, list[int]] = {"a": [], "b": []}
    order: list[str] = []

    def contestant(name: str) -> Contestant:
        def call(batch: int) -> None:
            seen[name].append(batch)
            if not order or order[-1] != name:
                order.append(name)

        return Contestant(call, [(i,) for i in range(50)])

    timings = run_rounds({n: contestant(n) for n in seen}, RoundsConfig(num_rounds=2, turn_s=0.001))
    assert [len(timing.seconds) for timing in timings.values()] == [2, 2]
    assert order[-3:] == ["a", "b", "a"]
    assert all(set(batches) == set(range(50)) for batches in seen.values())


def test_speedups_compare_turns_of_the_same_round() -> None:
    fast, slow = Timing(seconds=(1.0, 4.0, 2.0)), Timing(seconds=(2.0, 4.0, 8.0))
    assert fast.speedups_over(slow) == [1.0, 2.0, 4.0]
    assert fast.median_s == 2.0
