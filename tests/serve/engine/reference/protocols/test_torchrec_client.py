"""TorchRec's own example client, as it is, against a live server; and bytes made without our generated code."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import grpc
import numpy as np
import pytest

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, EmbeddingBagConfig
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.models.dlrm import DLRM
from serve.engine.reference.executor import ServedModel
from serve.engine.reference.port import MODEL_KEY, VERSION_KEY
from serve.engine.reference.protocols.torchrec import SERVICE
from serve.wire import predictor_pb2 as wire
from tests.support.serve.live import LiveServer
from tests.support.serve.messages.cases import Sample, answer, assert_answers, random_sample
from tests.support.serve.messages.foreign import torchrec_message
from tests.support.serve.models import SIGNATURE

PREDICT = f"/{SERVICE}/Predict"
NUM_ROWS, NUM_IDS = 100, 50  # of the client's batch; of each table

# The client imports the code that its users generate from TorchRec's proto file; here, what we generate from ours.
_RUN_CLIENT = """
import json, runpy, sys, warnings
warnings.simplefilter("ignore")
import serve.wire.predictor_pb2, serve.wire.predictor_pb2_grpc
sys.modules["predictor_pb2"] = serve.wire.predictor_pb2
sys.modules["predictor_pb2_grpc"] = serve.wire.predictor_pb2_grpc
import torch
torch.manual_seed(5)
client = runpy.run_module("torchrec.inference.client", run_name="__main__")
torch.manual_seed(5)
batch = client["create_training_batch"](client["args"])
print("dense", json.dumps(batch.dense_features.tolist()))
print("lengths", json.dumps(batch.sparse_features.lengths().tolist()))
print("values", json.dumps(batch.sparse_features.values().tolist()))
"""


@pytest.fixture(scope="module")
def criteo(tmp_path_factory: pytest.TempPathFactory) -> LoadedArtifact:
    """A DLRM of the client's 13 dense and 26 sparse features."""
    tables = [
        EmbeddingBagConfig(
            name=f"t_cat_{i}", embedding_dim=4, num_embeddings=NUM_IDS, feature_names=[f"cat_{i}"]
        )
        for i in range(26)
    ]
    path = tmp_path_factory.mktemp("criteo") / "dlrm"
    model = DLRM(EmbeddingBagCollection(tables), 13, [8, 4], [8, 1]).eval()
    export_model(model, path, ExportConfig(name="dlrm"))
    return load_artifact(path)


@pytest.mark.peer
def test_torchrecs_client_is_answered(criteo: LoadedArtifact) -> None:
    pytest.importorskip("torchrec", reason="the peer is not installed")
    with LiveServer(criteo) as live:
        arguments = ["--ip", "127.0.0.1", "--port", str(live.server.port)]
        arguments += ["--num_embedding_features", str(NUM_IDS), "--batch_size", str(NUM_ROWS)]
        done = subprocess.run(
            [sys.executable, "-c", _RUN_CLIENT, *arguments],
            capture_output=True,
            text=True,
            timeout=240,
            cwd=Path(__file__).resolve().parents[5],
        )
    assert done.returncode == 0, done.stderr
    printed = dict(re.findall(r"^(Response: |dense|lengths|values) (.*)$", done.stdout, re.MULTILINE))
    batch = {name: json.loads(printed[name]) for name in ("dense", "lengths", "values")}
    assert batch["lengths"] == [1] * 26 * NUM_ROWS
    signature = criteo.signature
    assert [s.name for s in signature.sparse] == [f"cat_{i}" for i in range(26)]
    ids = np.array(batch["values"]).reshape(26, NUM_ROWS, 1)
    sparse = {f"cat_{i}": ids[i].tolist() for i in range(26)}
    sample = Sample(NUM_ROWS, {signature.dense[0].name: batch["dense"]}, sparse, {})
    (expected,) = answer(criteo, sample).values()
    got = np.array(json.loads(printed["Response: "]), "<f4").reshape(expected.shape)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def _bytes_field(number: int, data: bytes) -> bytes:
    """A field of protobuf's wire format: length-delimited, as short as the lengths of this file."""
    size = len(data)
    length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return bytes([number << 3 | 2]) + length + data


def _number_field(number: int, value: int) -> bytes:
    return bytes([number << 3, value])


def test_bytes_by_hand_are_answered(live: LiveServer, model: ServedModel) -> None:
    sample = Sample(
        2,
        {"context": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "price": [[0.5], [0.25]]},
        {"user": [[1, 2], []], "genres": [[3], [4]], "item": [[], [5]], "tags": [[6], [7]]},
        {"tags": [[0.5], [2.0]]},
    )
    floats = _number_field(1, 4) + _bytes_field(2, struct.pack("<8f", 1, 2, 3, 0.5, 4, 5, 6, 0.25))
    plain = _number_field(1, 3) + _bytes_field(2, struct.pack("<6i", 2, 0, 1, 1, 0, 1))
    plain += _bytes_field(3, struct.pack("<5i", 1, 2, 3, 4, 5))
    scored = _number_field(1, 1) + _bytes_field(2, struct.pack("<2i", 1, 1))
    scored += _bytes_field(3, struct.pack("<2q", 6, 7)) + _bytes_field(4, struct.pack("<2f", 0.5, 2.0))
    request = _number_field(1, 2) + _bytes_field(2, floats) + _bytes_field(3, plain) + _bytes_field(4, scored)
    request += _bytes_field(5, b"") + _bytes_field(6, b"")
    with grpc.insecure_channel(live.address) as channel:
        data = channel.unary_unary(PREDICT)(request)
    scores = answer(model, sample)["score"]
    predictions = wire.PredictionResponse.FromString(data).predictions
    np.testing.assert_allclose(predictions["default"].data, scores, rtol=1e-4, atol=1e-5)
    # Field 1, an entry of the map: field 1 its key, field 2 its FloatVec, whose field 1 is packed.
    packed = struct.pack("<2f", *predictions["default"].data)
    entry = _bytes_field(1, b"default") + _bytes_field(2, _bytes_field(1, packed))
    assert _bytes_field(1, entry) in data


def test_a_live_answer_is_the_models(live: LiveServer, model: ServedModel) -> None:
    sample = random_sample(SIGNATURE, 7, np.random.default_rng(1))
    message = torchrec_message(SIGNATURE, sample, "<i8")
    metadata = ((MODEL_KEY, "small"), (VERSION_KEY, "7"))
    with grpc.insecure_channel(live.address) as channel:
        data = channel.unary_unary(PREDICT)(message.SerializeToString(), metadata=metadata)
    expected = answer(model, sample)
    got = wire.PredictionResponse.FromString(data).predictions
    outputs = {name: np.array(got[name].data, "<f4").reshape(expected[name].shape) for name in expected}
    assert_answers(outputs, expected)


@pytest.mark.parametrize(("key", "value"), [(MODEL_KEY, "other"), (VERSION_KEY, "8")])
def test_another_model_or_version_is_not_found(live: LiveServer, key: str, value: str) -> None:
    message = torchrec_message(SIGNATURE, random_sample(SIGNATURE, 1, np.random.default_rng(1)), "<i8")
    with grpc.insecure_channel(live.address) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(PREDICT)(message.SerializeToString(), metadata=((key, value),))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("data", [b"\xff", b"\x12\xff\xff"])
def test_bytes_that_are_no_message_get_invalid_argument(live: LiveServer, data: bytes) -> None:
    with grpc.insecure_channel(live.address) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(PREDICT)(data)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "bytes that are not a PredictionRequest" in caught.value.details()
