"""Processes that send."""

from __future__ import annotations

import multiprocessing

import pytest

from serve.bench.load.plan import Job, LoadError, Step, Target
from serve.bench.load.workers import Workers
from serve.client import Client
from serve.engine.reference.executor import ServedModel
from tests.support.serve.live import LiveServer


def test_a_sending_process_that_dies_ends_the_run(model: ServedModel) -> None:
    with LiveServer(model) as live, Client(live.address) as asked:
        job = Job(target=Target(address=live.address), metadata=asked.metadata().SerializeToString())
        others = set(multiprocessing.active_children())
        with Workers([job]) as workers:
            (child,) = set(multiprocessing.active_children()) - others

            def kill(_elapsed_s: float, num_answered: int, _num_failed: int) -> None:
                if num_answered and child.is_alive():
                    child.kill()

            with pytest.raises(LoadError, match="has ended"):
                workers.measure(Step(duration_s=60.0, num_in_flight=1), kill)
