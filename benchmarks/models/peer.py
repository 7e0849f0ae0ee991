"""The peer: TorchRec's own DLRM for inference, quantized and scripted as TorchRec's packager does it.

The steps are those of ``torchrec.inference.dlrm_predict.DLRMPredictFactory.create_predict_module`` without
``shard_quant_model``, which cannot run on CPU in TorchRec 1.8 and loses the trained weights:

1. ``torchrec.inference.dlrm_predict.DLRMPredictModule``, a ``torchrec.models.dlrm.DLRM`` whose ``forward`` takes a
   dict of plain tensors, makes the KeyedJaggedTensor, and answers ``{"default": probabilities}``;
2. ``torchrec.inference.modules.quantize_inference_model`` with its defaults (INT8 rows, float32 output);
3. ``torchrec.fx.tracer.Tracer(leaf_modules=["IntNBitTableBatchedEmbeddingBagsCodegen"])``;
4. ``torch.jit.script`` of the graph, which then makes the KeyedJaggedTensor inside the script.

TorchRec is imported where it is used, because only this comparison depends on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from benchmarks.models.dlrm import (
    DENSE_LAYERS,
    EMBEDDING_DIM,
    FEATURE_NAMES,
    NUM_DENSE,
    OVER_LAYERS,
    Request,
)
from recsys.models.click import ClickModel
from recsys.scripting import torchscript

OUTPUT_NAME = "default"
TensorDict = dict[str, Tensor]


class PeerMissingError(RuntimeError):
    """TorchRec is not installed."""


def check_installed() -> None:
    """Raise unless TorchRec can be imported.

    Raises:
        PeerMissingError: it cannot.
    """
    if find_spec("torchrec") is None:
        raise PeerMissingError("torchrec: not installed; `make setup` installs the peers")


def script_peer(model: ClickModel, num_rows: int) -> Callable[[TensorDict], TensorDict]:
    """TorchRec's scripted INT8 model with a float model's weights; call it in inference mode only.

    Args:
        model: gives the weights; its state-dict names are TorchRec's.
        num_rows: R of every table.

    Raises:
        PeerMissingError: TorchRec is not installed.
    """
    check_installed()
    logging.getLogger("torch.fx").setLevel(logging.ERROR)
    torchrec = import_module("torchrec")
    predict = import_module("torchrec.inference.dlrm_predict")
    quantize = import_module("torchrec.inference.modules").quantize_inference_model
    tracer = import_module("torchrec.fx.tracer").Tracer(
        leaf_modules=["IntNBitTableBatchedEmbeddingBagsCodegen"]
    )

    tables = [
        torchrec.EmbeddingBagConfig(
            name=f"table_{i}", embedding_dim=EMBEDDING_DIM, num_embeddings=num_rows, feature_names=[feature]
        )
        for i, feature in enumerate(FEATURE_NAMES)
    ]
    cpu = torch.device("cpu")
    float_peer = predict.DLRMPredictModule(
        torchrec.EmbeddingBagCollection(tables=tables, device=cpu),
        NUM_DENSE,
        list(DENSE_LAYERS),
        list(OVER_LAYERS),
        list(FEATURE_NAMES),
        cpu,
    )
    float_peer.predict_module.load_state_dict(model.model.state_dict())
    quantized = quantize(float_peer).requires_grad_(False)
    with torch.inference_mode():
        # The first call builds the lookup and fixes the order of the features.
        quantized(as_peer_inputs([_one_sample()])[0][0])
    return torchscript.script(torch.fx.GraphModule(quantized, tracer.trace(quantized)))


def _one_sample() -> Request:
    ids = torch.zeros(len(FEATURE_NAMES), dtype=torch.int64)
    return Request(dense=torch.zeros(1, NUM_DENSE), lengths=torch.ones_like(ids), values=ids)


def as_peer_inputs(requests: Sequence[Request]) -> list[tuple[TensorDict]]:
    """The same plain tensors under the names that ``DLRMPredictModule`` reads."""
    return [
        (
            {
                "float_features": request.dense,
                "id_list_features.lengths": request.lengths,
                "id_list_features.values": request.values,
            },
        )
        for request in requests
    ]
