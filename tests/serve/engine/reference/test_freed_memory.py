"""Memory that calls have held and freed is returned once less has been in use for a while."""

from __future__ import annotations

from serve.engine.reference.freed_memory import FreedMemory

_MB = 1 << 20


def _due(*readings_mb: int) -> list[int]:
    """Return the indices of the readings after which memory is returned."""
    freed = FreedMemory()
    return [i for i, mb in enumerate(readings_mb) if freed.is_due(mb * _MB)]


def test_memory_is_returned_once_five_readings_in_a_row_are_lower() -> None:
    assert _due(100, 900, 100, 100, 100, 100, 100, 100, 100) == [6]


def test_a_load_that_comes_and_goes_keeps_its_memory() -> None:
    assert _due(*[100, 900, 100, 100] * 5) == []


def test_memory_that_stays_in_use_or_is_little_less_is_not_returned() -> None:
    assert _due(100, 900, *[840] * 20) == []


def test_a_second_flood_is_noticed_too() -> None:
    assert _due(900, *[100] * 6, 900, *[100] * 6) == [5, 12]


def test_a_slow_release_is_noticed() -> None:
    assert _due(*range(900, 0, -50))
