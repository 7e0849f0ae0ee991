"""A collector of quality and drift that has every series."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from recsys.inputs.example_rows import ExampleRows
from recsys.inputs.signature import IdPolicy, Output, Signature, SparseInput, TableUse
from recsys.inputs.sketch import sketch_of
from serve.client.packing import build_request
from serve.config.settings import QualityConfig
from serve.engine.records import draw_of
from serve.engine.reference.answers import Answered, RecordedBlock
from serve.engine.routes import Plan, RouteTable
from serve.quality.drift import InputWatch
from serve.quality.families import QualityCollector
from serve.quality.labels import FeedbackItem
from serve.quality.monitor import LabelledQuality


def _compared_inputs() -> InputWatch:
    """Inputs with every kind of drift."""
    table = TableUse(name="t", num_embeddings=2, id_policy=IdPolicy.HASH)
    sparse = SparseInput(name="user", tables=(table,), pooling="sum")
    sketch = sketch_of(ExampleRows(num_rows=1, dense={}, sparse={"user": [[1]]}))
    watch = InputWatch(QualityConfig(drift_share=1.0))
    servable = SimpleNamespace(info=SimpleNamespace(data_sketch=sketch), num_owned=lambda _table, _ids: None)
    routes: Any = SimpleNamespace(servables={"1": servable})
    watch.table = lambda _: routes
    request = Answered(
        time_s=0.0,
        protocol="recsys",
        model="m",
        version="1",
        request_id="",
        num_rows=500,
        draw=0.0,
        message=build_request({}, {"user": [[1]] * 500}).SerializeToString(),
        outputs=[],
        signature=Signature(dense=(), sparse=(sparse,), outputs=()),
    )
    watch.offer(RecordedBlock([request]))
    watch.close()
    return watch


def quality_collector() -> QualityCollector:
    """Return a collector with a label, and with every kind of drift."""
    quality = LabelledQuality(QualityConfig())
    record = Answered(
        time_s=0.0,
        protocol="recsys",
        model="m",
        version="1",
        request_id="a",
        num_rows=2,
        draw=0.0,
        message=None,
        outputs=[np.full(2, 0.5, np.float32).tobytes()],
        signature=Signature(dense=(), sparse=(), outputs=(Output(name="score", shape=()),)),
    )
    quality.table = lambda _: RouteTable(model="m", plan=Plan(serving="1"))
    quality.answered(RecordedBlock([record._replace(draw=draw_of("a"))]))
    quality.take([FeedbackItem(request_id="a", labels={"click": [0, 1]})], "grpc")
    return QualityCollector(quality, _compared_inputs())
