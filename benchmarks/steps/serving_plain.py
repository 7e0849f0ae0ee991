"""A plain gRPC server around the same scripted model: a pool of threads, each request computed alone; no batching.

Requests are checked and laid out by the same code as in ``recsys-serve``, so that only the way of serving differs.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import torch

from recsys.base.allocator import tune_malloc
from serve.client import CHANNEL_OPTIONS
from serve.config.models import BatchLimits, ModelSettings
from serve.engine.reference.engine import load_model
from serve.engine.reference.executor import check_outputs, collate
from serve.engine.reference.protocols.recsys_v1 import SERVICE, encode_response
from serve.engine.reference.request_check import RequestChecker
from serve.rpc.metadata import model_metadata
from serve.wire import predict_pb2 as wire

_NUM_THREADS = 8


class PlainServer:
    """Answers Predict and GetModelMetadata.

    Args:
        path: of the artifact.
    """

    def __init__(self, path: Path) -> None:
        self._model, self._info = load_model(path, ModelSettings(verify_checksums=False))
        self._signature = self._model.signature
        self._checker = RequestChecker(self._signature, BatchLimits())
        self._server = grpc.server(ThreadPoolExecutor(_NUM_THREADS), options=CHANNEL_OPTIONS)
        handlers = {
            "Predict": grpc.unary_unary_rpc_method_handler(self._predict),
            "GetModelMetadata": grpc.unary_unary_rpc_method_handler(self._metadata),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    def start(self) -> None:
        """Answer from now on."""
        self._server.start()

    def stop(self) -> None:
        """Answer no more."""
        self._server.stop(None).wait()

    def _predict(self, data: bytes, _context: Any) -> bytes:
        checked = self._checker.check(wire.PredictRequest.FromString(data))
        inputs = collate([checked])
        with torch.inference_mode():
            forward = self._model.forward if checked.context is None else self._model.forward_ranking
            outputs = check_outputs(forward(*inputs), self._signature, checked.num_rows)
        return encode_response(self._info, self._signature, checked.num_rows, outputs)

    def _metadata(self, _data: bytes, _context: Any) -> bytes:
        message = model_metadata(
            self._signature,
            self._info,
            limits=BatchLimits(),
            max_message_bytes=4 << 20,
        )
        serialized: bytes = message.SerializeToString()
        return serialized


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM; prints one JSON line once it listens."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps.serving_plain", description=__doc__)
    parser.add_argument("artifact", type=Path)
    args = parser.parse_args(argv)
    tune_malloc()
    torch.set_num_threads(1)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    server = PlainServer(args.artifact)
    server.start()
    print(json.dumps({"port": server.port}), flush=True)
    ended.wait()
    server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
