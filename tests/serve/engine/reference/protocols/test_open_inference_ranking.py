"""Ranking requests in the other protocols: a context once, candidates beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.inputs.signature import IdPolicy
from serve.protocols.open_inference import SERVICE
from serve.wire import open_inference_pb2 as wire
from tests.support.serve.live import LiveServer
from tests.support.serve.messages.cases import Sample, answer, assert_answers, random_sample
from tests.support.serve.messages.foreign import kserve_message, tensors
from tests.support.serve.messages.rest_calls import CONFIG, PREDICT, ask
from tests.support.serve.models import SIGNATURE, SmallModel

CONTEXT = ("context", "user", "tags")


@pytest.fixture(scope="module", params=[(), CONTEXT], ids=["exported-without", "exported-with"])
def ranked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LiveServer, LoadedArtifact]]:
    """A server of the small model, with and without a ranking graph."""
    path: Path = tmp_path_factory.mktemp("ranked") / "small"
    config = ExportConfig(
        name="small",
        dense_widths={"context": 3, "price": 1},
        table_id_policies={"catalog": IdPolicy.HASH},
        context=request.param,
    )
    export_model(SmallModel().eval(), path, config)
    model = load_artifact(path)
    assert set(model.signature.context) == set(request.param)
    with LiveServer(model, CONFIG) as live:
        yield live, model


def shared_and_whole(rows: int) -> tuple[Sample, Sample]:
    """A context of one row, and the same rows with it repeated."""
    whole = random_sample(SIGNATURE, rows, np.random.default_rng(rows))
    one = Sample(
        1,
        {name: values[:1] for name, values in whole.dense.items()},
        {name: bags[:1] for name, bags in whole.sparse.items()},
        {name: bags[:1] for name, bags in whole.weights.items()},
    )
    for part in (whole.dense, whole.sparse, whole.weights):
        for name in set(CONTEXT) & set(part):
            part[name][:] = [part[name][0]] * rows
    return one, whole


@pytest.mark.parametrize("rows", [1, 6])
def test_open_inference(ranked: tuple[LiveServer, LoadedArtifact], rows: int) -> None:
    live, model = ranked
    one, whole = shared_and_whole(rows)
    made = [t for t in tensors(SIGNATURE, one) if t.name.split(".")[0] in CONTEXT]
    made += [t for t in tensors(SIGNATURE, whole) if t.name.split(".")[0] not in CONTEXT]
    message = kserve_message(made)
    message.parameters["context"].string_param = "user, tags,context"
    with grpc.insecure_channel(live.address) as channel:
        data = channel.unary_unary(f"/{SERVICE}/ModelInfer")(message.SerializeToString())
    response = wire.ModelInferResponse.FromString(data)
    got = {
        output.name: np.frombuffer(values, "<f4").reshape(output.shape)
        for output, values in zip(response.outputs, response.raw_output_contents, strict=True)
    }
    assert_answers(got, answer(model, whole))


@pytest.mark.parametrize("rows", [1, 6])
def test_plain_json(ranked: tuple[LiveServer, LoadedArtifact], rows: int) -> None:
    live, model = ranked
    one, whole = shared_and_whole(rows)
    parts = ("dense", "sparse", "weights")
    body = {
        part: {name: values for name, values in getattr(whole, part).items() if name not in CONTEXT}
        for part in parts
    }
    context = {
        part: {name: values for name, values in getattr(one, part).items() if name in CONTEXT}
        for part in parts
    }
    reply = ask(live, "POST", PREDICT, {**body, "context": context})
    assert reply.status == 200, reply.data
    got = {name: np.array(values, "<f4") for name, values in reply.json()["outputs"].items()}
    assert_answers(got, answer(model, whole))
