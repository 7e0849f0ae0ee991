"""``recsys.v1.FeedbackService``: labels for answers, over gRPC and for REST."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from google.protobuf.message import Message

from recsys.streams.address import KafkaAddress
from serve.errors import NotAllowedError
from serve.protocols.calls import BytesMethod, bytes_method
from serve.quality.labels import FeedbackItem, Taken, items_of_message
from serve.quality.topic import LabelTopic
from serve.rpc.backend import Backend
from serve.wire import feedback_pb2 as wire

SERVICE = wire.DESCRIPTOR.services_by_name["FeedbackService"].full_name


def feedback_method(backend: Backend) -> BytesMethod:
    """Return ``recsys.v1.FeedbackService.Feedback``."""

    async def feedback(request: wire.FeedbackRequest) -> Message:
        return take_labels(backend, items_of_message(request), "grpc").message()

    return bytes_method(wire.FeedbackRequest, feedback, SERVICE)


def take_labels(backend: Backend, items: Sequence[FeedbackItem], source: str) -> Taken:
    """Take the labels of one call.

    Args:
        backend: the server.
        items: the labels.
        source: ``grpc``, ``rest`` or ``kafka``.

    Raises:
        NotAllowedError: the server keeps no answers for labels.
    """
    if backend.quality is None:
        raise NotAllowedError(
            "feedback: this server keeps no answers for labels; its operator can turn that on by [quality] of its "
            "settings, such as --quality-within-s 3600"
        )
    # An answer is known to its client before its record is taken.
    backend.engine.take_records()
    return backend.quality.take(items, source)


def labels_of_topic(backend: Backend, topic: KafkaAddress) -> LabelTopic:
    """Return what takes the labels of a topic. Call it on the event loop.

    Raises:
        StreamError: a property of the connection is wrong.
    """
    assert backend.quality is not None
    loop, quality = asyncio.get_running_loop(), backend.quality

    async def take(items: Sequence[FeedbackItem]) -> None:
        take_labels(backend, items, "kafka")

    return LabelTopic(
        topic,
        # The thread waits, so that labels do not fill the event loop.
        lambda items: asyncio.run_coroutine_threadsafe(take(items), loop).result(),
        lambda: quality.refuse("kafka"),
    )
