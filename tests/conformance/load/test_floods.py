"""Floods over HTTP/2: other clients are answered meanwhile, and the server's memory stays bounded."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from serve.client import PREDICT
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.attacks import ATTACKS, under_attack
from tests.conformance.support.harness import ServerUnderTest
from tests.support.serve.messages.cases import assert_answers

_ATTACKED_S = 3.0
_MAX_P99_S = 1.0
# Four clients may hold their share each before their messages are complete; the allocator keeps some.
_MAX_GROWTH_BYTES = 400e6


# gRPC's core, which is the reference engine's port, has no such bounds.
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        os.environ.get("RECSYS_CONFORMANCE_ENGINE", "reference") != "native",
        reason="bounds of the native engine's port",
    ),
]


@pytest.mark.parametrize("name", ATTACKS)
def test_a_flood_delays_nobody_and_takes_bounded_memory(
    server: ServerUnderTest, small: Exported, name: str
) -> None:
    client, sample = server.client(), small.sample(3)
    expected = small.answer(sample)
    before = server.rss_bytes()
    took, grown = [], 0.0
    with under_attack(name, server.address, PREDICT, 2 * _ATTACKED_S):
        end_s = time.monotonic() + _ATTACKED_S
        while time.monotonic() < end_s:
            start_s = time.monotonic()
            found = client.predict(sample.dense, sample.sparse, sample.weights)
            took.append(time.monotonic() - start_s)
            assert_answers(found, expected)
            grown = max(grown, server.rss_bytes() - before)
            time.sleep(0.005)
    assert np.quantile(took, 0.99) < _MAX_P99_S
    assert grown < _MAX_GROWTH_BYTES
    assert server.is_alive()
