"""Send predictions over HTTP/1.1 on kept connections, one in flight on each, and print what it took as JSON.

The load generator of ``benchmarks.server.rest``: requests are bytes made before, and answers are read no further than
to their end, so that the client takes little of the processors that it shares with the server.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from recsys.base.cli import count
from serve.bench.load.requests import Shape, draw_requests
from serve.bench.load.wires import kserve_request, rest_body, rest_path
from serve.rest.tensors_json import HEADER_LENGTH
from serve.wire import open_inference_pb2 as open_inference
from serve.wire import predict_pb2 as wire
from serve.wire import predict_pb2_grpc as rpc

FORMS = ("plain", "infer", "binary")
_DISTINCT = 256
_LENGTH = b"Content-Length: "


@dataclass
class _Connection:
    socket: socket.socket
    began_s: float = 0.0
    received: bytes = b""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps.rest_load", description=__doc__)
    parser.add_argument("grpc", help="address of the gRPC port, for the model's metadata")
    parser.add_argument("rest", help="address of the HTTP port")
    parser.add_argument("--form", choices=FORMS, default="plain", help="form of the bodies")
    parser.add_argument("--in-flight", type=count, default=1, metavar="N")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S")
    args = parser.parse_args(argv)
    requests = _requests(args.grpc, args.rest, args.form)
    latencies, took_s = _drive(args.rest, requests, args.in_flight, args.seconds)
    p50, p99 = np.percentile(np.array(latencies) * 1e3, [50, 99])
    print(json.dumps({"requests_per_s": len(latencies) / took_s, "p50_ms": p50, "p99_ms": p99}))
    return 0


def _requests(address: str, host: str, form: str) -> list[bytes]:
    """Return whole HTTP requests with single samples."""
    with grpc.insecure_channel(address) as channel:
        stub: Any = rpc.PredictionServiceStub(channel)  # type: ignore[no-untyped-call]
        metadata = stub.GetModelMetadata(wire.GetModelMetadataRequest())
    drawn = draw_requests(metadata, Shape(), _DISTINCT, np.random.default_rng(0))
    return [_request(request, metadata, host, form) for request, _ in drawn]


def _request(request: wire.PredictRequest, metadata: wire.ModelMetadata, host: str, form: str) -> bytes:
    path, headers = rest_path(metadata.model, ""), ""
    if form == "plain":
        path, body = f"/v1/models/{metadata.model}:predict", _plain(request)
    elif form == "infer":
        body = rest_body(request, metadata)
    else:
        body, num_json_bytes = _binary(kserve_request(request, metadata))
        headers = f"{HEADER_LENGTH}: {num_json_bytes}\r\n"
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


def _plain(request: wire.PredictRequest) -> bytes:
    dense = {
        one.name: np.frombuffer(one.values, "<f4").reshape(request.num_rows, -1).tolist()
        for one in request.dense
    }
    sparse = {}
    for one in request.sparse:
        ends = np.cumsum(np.frombuffer(one.lengths, "<i4"))
        sparse[one.name] = [row.tolist() for row in np.split(np.frombuffer(one.values, "<i8"), ends[:-1])]
    return json.dumps({"dense": dense, "sparse": sparse}, separators=(",", ":")).encode()


def _binary(message: open_inference.ModelInferRequest) -> tuple[bytes, int]:
    """Return the body as Triton's client sends it, with binary tensors both ways, and the size of its JSON."""
    inputs = [
        {
            "name": one.name,
            "datatype": one.datatype,
            "shape": list(one.shape),
            "parameters": {"binary_data_size": len(data)},
        }
        for one, data in zip(message.inputs, message.raw_input_contents, strict=True)
    ]
    content = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    text = json.dumps(content, separators=(",", ":")).encode()
    return b"".join((text, *message.raw_input_contents)), len(text)


def _drive(
    address: str, requests: Sequence[bytes], in_flight: int, seconds: float
) -> tuple[list[float], float]:
    """Return the latencies in seconds, and how long it took."""
    host, port = address.rsplit(":", 1)
    selector = selectors.DefaultSelector()
    latencies: list[float] = []
    sent = 0
    for _ in range(in_flight):
        connection = _Connection(socket.create_connection((host, int(port))))
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        connection.began_s = time.perf_counter()
        connection.socket.sendall(requests[sent % len(requests)])
        sent += 1
    began_s = time.perf_counter()
    end_s = began_s + seconds
    num_open = in_flight
    while num_open:
        for key, _ in selector.select():
            connection = key.data
            connection.received += connection.socket.recv(1 << 16)
            if not _is_whole(connection.received):
                continue
            now_s = time.perf_counter()
            latencies.append(now_s - connection.began_s)
            if now_s >= end_s:
                selector.unregister(connection.socket)
                connection.socket.close()
                num_open -= 1
                continue
            connection.received, connection.began_s = b"", now_s
            connection.socket.sendall(requests[sent % len(requests)])
            sent += 1
    return latencies, time.perf_counter() - began_s


def _is_whole(received: bytes) -> bool:
    """Return whether an answer is complete; raises RuntimeError unless it is one to a prediction."""
    if not received:
        raise RuntimeError("the server closed the connection")
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return False
    if not received.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"got {received[:500]!r}, expected an answer")
    at = received.index(_LENGTH) + len(_LENGTH)
    return len(received) >= end + 4 + int(received[at : received.index(b"\r", at)])


if __name__ == "__main__":
    sys.exit(main())
