"""Sliding windows with a clock that the test moves."""

from __future__ import annotations

from dataclasses import dataclass

from serve.quality.windows import NUM_PARTS, WINDOWS, Windows


@dataclass
class Total:
    number: int = 0

    def merge(self, other: Total) -> None:
        self.number += other.number


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def add(windows: Windows[Total], number: int) -> None:
    def add_to(total: Total) -> None:
        total.number += number

    windows.add(add_to)


def numbers(windows: Windows[Total]) -> dict[str, int]:
    return {name: total.number for name, total in windows.totals().items()}


def test_what_is_added_leaves_each_window_in_its_time() -> None:
    clock = Clock()
    windows = Windows(Total, clock)
    add(windows, 1)
    assert numbers(windows) == {"5m": 1, "1h": 1, "1d": 1}
    clock.now_s += 299
    assert numbers(windows) == {"5m": 1, "1h": 1, "1d": 1}
    clock.now_s += 60
    add(windows, 10)
    assert numbers(windows) == {"5m": 10, "1h": 11, "1d": 11}
    clock.now_s += 3600 + 300
    assert numbers(windows) == {"5m": 0, "1h": 0, "1d": 11}
    clock.now_s += 2 * 86400
    assert numbers(windows) == {"5m": 0, "1h": 0, "1d": 0}


def test_a_window_goes_back_by_its_length_and_at_most_a_part_more() -> None:
    for name, length_s in WINDOWS.items():
        part_s = length_s / NUM_PARTS
        for offset in (0.0, 0.3, 0.99):
            clock = Clock()
            clock.now_s = 10 * length_s + offset * part_s
            windows = Windows(Total, clock)
            add(windows, 1)
            clock.now_s += length_s * 0.999
            assert numbers(windows)[name] == 1
            clock.now_s += part_s * 1.1
            assert numbers(windows)[name] == 0


def test_memory_does_not_grow_with_time() -> None:
    clock = Clock()
    windows = Windows(Total, clock)
    for _ in range(1000):
        clock.now_s += 25.0
        add(windows, 1)
    held = [part for window in windows._windows.values() for part in window._parts]
    assert len(held) <= 3 * (NUM_PARTS + 1)
