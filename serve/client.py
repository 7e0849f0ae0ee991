"""Clients: ``Client`` blocks, ``AsyncClient`` awaits. Neither imports torch.

Example::

    from serve.client import Client

    with Client("127.0.0.1:8500") as client:
        scores = client.predict(
            dense={"dense": [[0.5, 1.0]]},
            sparse={"user": [[7]], "genres": [[1, 4]]},
        )["score"]
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt

from serve.client_errors import predict_error
from serve.packing import ArrayLike, build_request, read_response
from serve.wire import predict_pb2 as wire

_SERVICE = wire.DESCRIPTOR.services_by_name["PredictionService"].full_name
PREDICT = f"/{_SERVICE}/Predict"
GET_MODEL_METADATA = f"/{_SERVICE}/GetModelMetadata"
# What a server answers is bounded by what was asked; -1 is gRPC's word for no further bound.
CHANNEL_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))

Outputs = dict[str, npt.NDArray[np.float32]]


class Client:
    """A blocking client. Thread-safe; closes its connection on ``close`` or at the end of a ``with`` block.

    Args:
        address: ``host:port`` of a server.
        timeout_s: for each call, unless the call names its own.
        model: the model's name; empty for the one that the server holds.
    """

    def __init__(self, address: str, *, timeout_s: float = 10.0, model: str = "") -> None:
        self._timeout_s = timeout_s
        self._model = model
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._predict = self._channel.unary_unary(
            PREDICT,
            request_serializer=wire.PredictRequest.SerializeToString,
            response_deserializer=wire.PredictResponse.FromString,
        )
        self._metadata = self._channel.unary_unary(
            GET_MODEL_METADATA,
            request_serializer=wire.GetModelMetadataRequest.SerializeToString,
            response_deserializer=wire.ModelMetadata.FromString,
        )

    def predict(
        self,
        dense: Mapping[str, ArrayLike] | None = None,
        sparse: Mapping[str, ArrayLike] | Any = None,
        weights: Mapping[str, ArrayLike] | None = None,
        *,
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> Outputs:
        """Score rows.

        Args:
            dense: by name, float ``[B, width]``.
            sparse: by name, rows of IDs; see ``serve.packing.build_request`` for every form that it takes.
            weights: by name, one weight per ID, for weighted inputs.
            request_id: stands in the server's log where the request fails.
            timeout_s: how long to wait for the answer.

        Returns:
            Each output by name, float32 ``[B, ...]``.

        Raises:
            ValueError: the inputs cannot be packed; nothing was sent.
            PredictError: the call failed; its subclasses say how.
        """
        request = build_request(
            dense or {}, {} if sparse is None else sparse, weights, model=self._model, request_id=request_id
        )
        return read_response(self._call(self._predict, request, timeout_s))

    def metadata(self, *, timeout_s: float | None = None) -> wire.ModelMetadata:
        """What the model takes and gives.

        Raises:
            PredictError: the call failed; its subclasses say how.
        """
        request = wire.GetModelMetadataRequest(model=self._model)
        metadata: wire.ModelMetadata = self._call(self._metadata, request, timeout_s)
        return metadata

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _call(self, method: Any, request: Any, timeout_s: float | None) -> Any:
        try:
            return method(request, timeout=self._timeout_s if timeout_s is None else timeout_s)
        except grpc.RpcError as error:
            raise predict_error(error) from None


class AsyncClient:
    """The same for asyncio; belongs to the event loop in which it was made.

    Args:
        address: ``host:port`` of a server.
        timeout_s: for each call, unless the call names its own.
        model: the model's name; empty for the one that the server holds.
    """

    def __init__(self, address: str, *, timeout_s: float = 10.0, model: str = "") -> None:
        self._timeout_s = timeout_s
        self._model = model
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._predict = self._channel.unary_unary(
            PREDICT,
            request_serializer=wire.PredictRequest.SerializeToString,
            response_deserializer=wire.PredictResponse.FromString,
        )
        self._metadata = self._channel.unary_unary(
            GET_MODEL_METADATA,
            request_serializer=wire.GetModelMetadataRequest.SerializeToString,
            response_deserializer=wire.ModelMetadata.FromString,
        )

    async def predict(
        self,
        dense: Mapping[str, ArrayLike] | None = None,
        sparse: Mapping[str, ArrayLike] | Any = None,
        weights: Mapping[str, ArrayLike] | None = None,
        *,
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> Outputs:
        """Score rows; see ``Client.predict``."""
        request = build_request(
            dense or {}, {} if sparse is None else sparse, weights, model=self._model, request_id=request_id
        )
        return read_response(await self._call(self._predict, request, timeout_s))

    async def metadata(self, *, timeout_s: float | None = None) -> wire.ModelMetadata:
        """What the model takes and gives; see ``Client.metadata``."""
        request = wire.GetModelMetadataRequest(model=self._model)
        metadata: wire.ModelMetadata = await self._call(self._metadata, request, timeout_s)
        return metadata

    async def close(self) -> None:
        """Close the connection; idempotent."""
        await self._channel.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _call(self, method: Any, request: Any, timeout_s: float | None) -> Any:
        try:
            return await method(request, timeout=self._timeout_s if timeout_s is None else timeout_s)
        except grpc.aio.AioRpcError as error:
            raise predict_error(error) from None
