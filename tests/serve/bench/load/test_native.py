"""The native sender as Python drives it."""

from __future__ import annotations

import time

import pytest

from serve.bench.load.native import NativeLoad, why_not_native
from serve.bench.load.plan import Job, Step, Target
from serve.client import Client
from serve.engine.reference.executor import ServedModel
from tests.support.serve.live import LiveServer
from tests.support.serve.models import GatedModel

needs_native = pytest.mark.skipif(
    bool(why_not_native(Target(address="127.0.0.1:9"))),
    reason="needs the native sender; make native builds it",
)


@needs_native
def test_an_interrupt_ends_the_native_sender_at_once(model: ServedModel) -> None:
    """It waits for answers that do not come, with a timeout of an hour."""
    gated = GatedModel(model)
    with LiveServer(gated) as live, Client(live.address) as asked:
        job = Job(
            target=Target(address=live.address, timeout_s=3600.0, num_connections=2),
            metadata=asked.metadata().SerializeToString(),
        )
        gated.close_gate()
        try:
            for step in (
                Step(duration_s=3600.0, num_in_flight=4),
                Step(duration_s=3600.0, rate_per_s=100.0),
                Step(duration_s=3600.0, rate_per_s=0.001),
            ):
                begin_s = time.monotonic()

                def interrupt(elapsed_s: float, _num_answered: int, _num_failed: int) -> None:
                    if elapsed_s > 0.3:
                        raise KeyboardInterrupt

                with pytest.raises(KeyboardInterrupt), NativeLoad(job, 2) as load:
                    load.measure(step, interrupt)
                del load
                assert time.monotonic() - begin_s < 30
        finally:
            gated.gate.set()
