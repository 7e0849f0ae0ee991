"""Whatever arrives in whatever order: a stream applies only what fits, and goes as far as what came leads."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from recsys.streams.interface import StreamedDelta
from serve.metrics.streams import StreamState
from serve.models.delta_stream import DeltaStream
from tests.serve.models.test_delta_stream import (
    ARTIFACT,
    OTHER,
    SINCE_S,
    broken,
    chain,
    delta,
    partial,
    state,
)

NUM_DELTAS = 8
_numbers = st.integers(1, NUM_DELTAS)
_deltas = st.one_of(
    _numbers.map(delta),
    _numbers.map(partial),
    _numbers.map(lambda number: replace(delta(number), artifact=OTHER)),
    _numbers.map(lambda number: broken(f"{number}.cut")),
    st.tuples(_numbers, _numbers).map(lambda ends: chain(min(ends), max(ends))),
    # Two deltas of one state: publishers that did not know each other.
    _numbers.map(lambda number: replace(delta(number), name=f"{number}.rival", digest=f"f{number:011x}")),
)


@given(st.lists(st.lists(_deltas, max_size=6), max_size=8), st.data())
def test_only_what_fits_is_applied_and_the_end_is_that_of_the_whole_chain(
    arrivals: list[list[StreamedDelta]], data: st.DataObject
) -> None:
    stream, at, found = DeltaStream(ARTIFACT, SINCE_S), ARTIFACT, dict[str, StreamedDelta]()
    seen, past = [at], set[str]()
    whole = [delta(number) for number in range(1, NUM_DELTAS + 1)]
    for arrived in (*arrivals, whole, [], []):
        for one in arrived:
            if not (one.error and one.name in found):  # a whole delta does not become partial
                found[one.name] = one
        shown = sorted(found.values(), key=lambda one: (one.created_s, one.name))
        failing = data.draw(st.booleans())
        while (one := stream.next(shown)) is not None:
            # It fits the state of the rows, is whole, and is for this artifact.
            assert at in (one.base, *one.replaces[:-1])
            assert (one.artifact, one.error) == (ARTIFACT, "")
            if failing:
                failing = False
                stream.failed(one, StreamState.FAILED, "there is too little memory")
                continue
            stream.applied(one)
            at = one.digest
            assert at not in seen
            seen.append(at)
            past = {*found}
            assert stream.status.last == one.name
        stream.settle(shown, {ARTIFACT, OTHER}, is_due=data.draw(st.booleans()))
        status = stream.status
        assert (status.state is StreamState.FOLLOWING) == (not status.reason)
    stream.settle(shown, {ARTIFACT, OTHER})
    while (one := stream.next(shown)) is not None:
        stream.applied(one)
        at = one.digest
        past = {*found}
    for _ in range(2):
        stream.settle(shown, {ARTIFACT, OTHER})
    # It went to the end of the chain, or to the end of another publisher's branch, and waits for no delta.
    if at == state(NUM_DELTAS):
        last_s = stream.status.last_created_s
        cut = [
            one
            for one in shown
            if one.name.endswith(".cut") and (one.created_s >= last_s or one.name not in past)
        ]
        assert stream.status.num_pending == len(cut)
    else:
        assert at.startswith("f")
