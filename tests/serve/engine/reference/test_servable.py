"""A loaded version: its end waits for every request that is being answered, and frees its memory."""

from __future__ import annotations

import threading
import weakref

from recsys.artifact.load import LoadedArtifact
from serve.config.models import ModelSettings
from serve.engine.reference.servable import ReferenceServable
from tests.support.serve.live import INFO
from tests.support.serve.models import GatedModel


def test_closing_waits_until_its_requests_have_ended(model: LoadedArtifact) -> None:
    servable = ReferenceServable(model, INFO, ModelSettings(num_executors=1), lambda _: None)
    servable.open()
    servable.counters.begin_request()
    servable.counters.begin_request()
    closing = threading.Thread(target=servable.close)
    closing.start()
    servable.counters.answered(0.1)
    servable.counters.end_request()
    closing.join(0.2)
    assert closing.is_alive()
    servable.counters.answered(0.1)
    servable.counters.end_request()
    closing.join(60)
    assert not closing.is_alive()
    assert servable.totals().outcomes["ok"] == 2


def test_a_closed_version_holds_no_memory_whoever_still_knows_it(model: LoadedArtifact) -> None:
    held = GatedModel(model)
    servable = ReferenceServable(held, INFO, ModelSettings(num_executors=1), lambda _: None)
    servable.open()
    gone = weakref.ref(held)
    del held
    servable.close()
    servable.close()
    assert gone() is None
    assert servable.info is INFO
