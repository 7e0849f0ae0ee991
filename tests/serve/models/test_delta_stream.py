"""Which delta of a folder comes next, and why a stream stops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from recsys.streams.interface import StreamedDelta
from serve.metrics.streams import StreamState
from serve.models.delta_stream import DeltaStream

ARTIFACT, OTHER = "a" * 12, "b" * 12
#: When the artifact was written.
SINCE_S = 100.0


def delta(number: int, base: str = "", *, artifact: str = ARTIFACT, name: str = "") -> StreamedDelta:
    """The delta that leads from the state before to state ``number``, made a second after it."""
    return StreamedDelta(
        name=name or f"{number}.delta",
        stamp=(64, number),
        created_s=SINCE_S + number,
        digest=state(number),
        artifact=artifact,
        base=base or (state(number - 1) if number > 1 else artifact),
    )


def state(number: int) -> str:
    return f"{number:012x}"


def broken(name: str, size_bytes: int = 10, created_s: float = SINCE_S + 1) -> StreamedDelta:
    return StreamedDelta(name=name, stamp=(size_bytes, 0), created_s=created_s, error="delta: it is cut off")


def poll(stream: DeltaStream, found: Sequence[StreamedDelta], *, is_due: bool = True) -> list[str]:
    """Apply all that can be; the names in their order."""
    names = []
    while (one := stream.next(found)) is not None:
        stream.applied(one)
        names.append(one.name)
    stream.settle(found, {ARTIFACT}, is_due=is_due)
    return names


def chain(first: int, last: int) -> StreamedDelta:
    """The compacted chain of the deltas from ``first`` to ``last``, made after them."""
    return replace(
        delta(last, delta(first).base, name=f"{first}-{last}.delta"),
        created_s=SINCE_S + last + 0.5,
        replaces=tuple(state(number) for number in range(first, last + 1)),
    )


def partial(number: int) -> StreamedDelta:
    """A delta of which messages lack."""
    return replace(delta(number), stamp=(1, number), error="1 of its 2 messages have arrived")


def new_stream() -> DeltaStream:
    return DeltaStream(ARTIFACT, SINCE_S)


def test_deltas_are_taken_in_the_order_of_their_chain_whatever_their_names_and_places() -> None:
    stream = new_stream()
    found = [delta(3, name="a.delta"), delta(1, name="c.delta"), delta(2, name="b.delta")]
    assert poll(stream, found) == ["c.delta", "b.delta", "a.delta"]
    status = stream.status
    assert (status.state, status.num_pending) == (StreamState.FOLLOWING, 0)
    assert (status.last, status.last_created_s) == ("a.delta", SINCE_S + 3)
    assert poll(stream, found) == []
    assert poll(stream, [*found, delta(4)]) == ["4.delta"]


def test_a_gap_stops_the_stream_at_the_second_poll_until_it_is_filled() -> None:
    stream = new_stream()
    found = [delta(1), delta(3), delta(4)]
    assert poll(stream, found) == ["1.delta"]
    assert (stream.status.state, stream.status.num_pending) == (StreamState.FOLLOWING, 2)
    assert poll(stream, found) == []
    assert (stream.status.state, stream.status.num_pending) == (StreamState.GAP, 2)
    assert "delta 3.delta follows state 000000000002" in stream.status.reason
    assert poll(stream, [*found, delta(2)]) == ["2.delta", "3.delta", "4.delta"]
    assert (stream.status.state, stream.status.reason) == (StreamState.FOLLOWING, "")


def test_a_file_that_cannot_be_read_stops_the_stream_once_it_has_not_changed_for_a_poll() -> None:
    stream = new_stream()
    for size in (10, 20, 30):  # it is being copied
        assert poll(stream, [broken("1.delta", size)]) == []
        assert stream.status.state is StreamState.FOLLOWING
    poll(stream, [broken("1.delta", 30)])
    assert stream.status.state is StreamState.DAMAGED
    assert stream.status.reason == "delta 1.delta cannot be read: delta: it is cut off"
    assert poll(stream, [delta(1)]) == ["1.delta"]
    assert stream.status.state is StreamState.FOLLOWING


def test_a_damaged_file_does_not_matter_any_more_once_a_newer_delta_is_applied() -> None:
    stream = new_stream()
    for _ in range(2):
        poll(stream, [broken("1.delta")])
    assert stream.status.state is StreamState.DAMAGED
    right = StreamedDelta(
        name="1-again.delta", stamp=(64, 1), created_s=SINCE_S + 9, digest=state(1), artifact=ARTIFACT,
        base=ARTIFACT,
    )  # fmt: skip
    assert poll(stream, [broken("1.delta"), right]) == ["1-again.delta"]
    assert (stream.status.state, stream.status.num_pending) == (StreamState.FOLLOWING, 0)


def test_a_delta_that_cannot_be_applied_stops_the_stream_until_its_file_changes() -> None:
    stream = new_stream()
    first = stream.next([delta(1), delta(2)])
    assert first is not None
    stream.failed(first, StreamState.DAMAGED, "rows have changed")
    for _ in range(3):
        assert poll(stream, [delta(1), delta(2)]) == []
        assert stream.status.state is StreamState.DAMAGED
        assert stream.status.reason == "delta 1.delta cannot be applied: rows have changed"
        assert stream.status.num_pending == 2
    right = replace(delta(1), stamp=(64, 77))
    assert poll(stream, [right, delta(2)]) == ["1.delta", "2.delta"]
    assert stream.status.state is StreamState.FOLLOWING


def test_a_delta_that_failed_for_another_reason_is_tried_at_each_poll() -> None:
    stream = new_stream()
    first = stream.next([delta(1)])
    assert first is not None
    stream.failed(first, StreamState.FAILED, "there is too little memory")
    assert stream.next([delta(1)]) is None
    stream.settle([delta(1)], {ARTIFACT})
    assert stream.status.state is StreamState.FAILED
    assert poll(stream, [delta(1)]) == ["1.delta"]
    assert stream.status.state is StreamState.FOLLOWING


def test_a_newer_delta_of_an_unknown_artifact_stops_the_stream_until_one_of_its_own_comes() -> None:
    stream = new_stream()
    foreign = delta(7, artifact=OTHER)
    poll(stream, [foreign])
    assert stream.status.state is StreamState.FOLLOWING
    poll(stream, [foreign])
    assert stream.status.state is StreamState.FOREIGN
    assert f"made for artifact {OTHER}" in stream.status.reason
    own = replace(delta(1), created_s=SINCE_S + 8)
    assert poll(stream, [foreign, own]) == ["1.delta"]
    assert stream.status.state is StreamState.FOLLOWING


def test_deltas_of_other_versions_and_of_the_past_are_left_alone() -> None:
    stream = new_stream()
    of_another_version = delta(7, artifact=OTHER)
    past = replace(delta(5, artifact="c" * 12), created_s=SINCE_S - 1)
    for _ in range(3):
        assert stream.next([past, of_another_version]) is None
        stream.settle([past, of_another_version], {ARTIFACT, OTHER})
        assert (stream.status.state, stream.status.num_pending) == (StreamState.FOLLOWING, 0)


def test_of_two_with_the_same_predecessor_the_older_is_taken_and_the_other_left() -> None:
    stream = new_stream()
    rival = StreamedDelta(
        name="0.delta", stamp=(64, 9), created_s=SINCE_S + 9, digest=state(9), artifact=ARTIFACT,
        base=ARTIFACT,
    )  # fmt: skip
    found = sorted([rival, delta(1), delta(2)], key=lambda one: one.created_s)
    assert poll(stream, found) == ["1.delta", "2.delta"]
    poll(stream, found)
    assert (stream.status.state, stream.status.num_pending) == (StreamState.FOLLOWING, 0)


def test_a_folder_that_cannot_be_read_stops_the_stream_until_it_can() -> None:
    stream = new_stream()
    stream.unreadable("the folder cannot be read")
    assert (stream.status.state, stream.status.reason) == (StreamState.FAILED, "the folder cannot be read")
    assert poll(stream, [delta(1)]) == ["1.delta"]
    assert stream.status.state is StreamState.FOLLOWING


def test_a_server_that_starts_takes_the_longest_compacted_chain_and_goes_on_after_it() -> None:
    found = [delta(1), delta(2), chain(1, 2), delta(3), chain(1, 3), delta(4)]
    stream = new_stream()
    assert poll(stream, found) == ["1-3.delta", "4.delta"]
    poll(stream, found)
    assert (stream.status.state, stream.status.num_pending) == (StreamState.FOLLOWING, 0)
    # In a compacted topic the first delta is gone.
    stream = new_stream()
    assert poll(stream, found[1:]) == ["1-3.delta", "4.delta"]
    poll(stream, found[1:])
    assert (stream.status.state, stream.status.num_pending) == (StreamState.FOLLOWING, 0)


def test_a_compacted_chain_is_not_taken_by_who_has_it_and_fills_a_gap_of_who_has_a_part() -> None:
    stream = new_stream()
    assert poll(stream, [delta(1), delta(2)]) == ["1.delta", "2.delta"]
    assert poll(stream, [delta(1), delta(2), chain(1, 2), delta(3)]) == ["3.delta"]
    assert poll(stream, [chain(1, 6), delta(7)]) == ["1-6.delta", "7.delta"]
    poll(stream, [chain(1, 6), delta(7)])
    assert (stream.status.state, stream.status.num_pending) == (StreamState.FOLLOWING, 0)


def test_the_deltas_of_a_chain_are_taken_if_the_compacted_one_is_damaged() -> None:
    stream, found = new_stream(), [delta(1), delta(2), chain(1, 2)]
    compacted = stream.next(found)
    assert compacted is not None
    stream.failed(compacted, StreamState.DAMAGED, "rows have changed")
    assert poll(stream, found) == ["1.delta", "2.delta"]
    assert stream.status.state is StreamState.FOLLOWING


def test_a_delta_of_which_messages_lack_is_not_applied_and_stops_the_stream_until_they_come() -> None:
    stream = new_stream()
    found = [delta(1), partial(2), delta(3)]
    assert poll(stream, found) == ["1.delta"]
    assert (stream.status.state, stream.status.num_pending) == (StreamState.FOLLOWING, 2)
    assert poll(stream, found) == []
    assert stream.status.state is StreamState.DAMAGED
    assert stream.status.reason == "delta 2.delta cannot be read: 1 of its 2 messages have arrived"
    assert poll(stream, [delta(1), delta(2), delta(3)]) == ["2.delta", "3.delta"]
    assert stream.status.state is StreamState.FOLLOWING


def test_partial_deltas_of_other_artifacts_and_beside_the_chain_do_not_matter() -> None:
    stream = new_stream()
    # A publisher was killed, and its successor published another delta of the same state, with an earlier clock.
    rival = replace(partial(1), name="rival.delta", digest=state(9), created_s=SINCE_S + 50)
    foreign = replace(partial(7), artifact=OTHER, created_s=SINCE_S - 1)
    for _ in range(3):
        poll(stream, [delta(1), delta(2), rival, foreign])
        assert (stream.status.state, stream.status.num_pending) == (StreamState.FOLLOWING, 0)


def test_what_is_missing_may_arrive_next_until_the_interval_between_polls_has_passed() -> None:
    stream = new_stream()
    for found in ([delta(2)], [delta(2)], [partial(1), delta(2)], [partial(1), delta(2)]):
        assert poll(stream, found, is_due=False) == []
        assert stream.status.state is StreamState.FOLLOWING
    poll(stream, found)
    assert stream.status.state is StreamState.FOLLOWING
    poll(stream, found, is_due=False)
    assert stream.status.state is StreamState.FOLLOWING
    poll(stream, found)
    assert stream.status.state is StreamState.DAMAGED
    poll(stream, found, is_due=False)
    assert stream.status.state is StreamState.DAMAGED
    assert poll(stream, [delta(1), delta(2)], is_due=False) == ["1.delta", "2.delta"]
    assert stream.status.state is StreamState.FOLLOWING


def test_a_damaged_delta_is_said_also_where_clocks_went_back() -> None:
    stream, early = new_stream(), broken("early.delta", created_s=SINCE_S)
    assert poll(stream, [early, delta(1), delta(2)]) == ["1.delta", "2.delta"]
    late = broken("late.delta", created_s=SINCE_S)
    for _ in range(2):
        assert poll(stream, [early, delta(1), delta(2), late]) == []
    assert stream.status.state == StreamState.DAMAGED
    assert "late.delta" in stream.status.reason
    assert stream.status.num_pending == 1
