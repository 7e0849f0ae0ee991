"""PredictStream: many requests on one call, each answered when it is done."""

from __future__ import annotations

import itertools
import queue
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from serve.client import PREDICT_STREAM
from serve.client.errors import InvalidRequestError, PredictError, UnknownModelError
from serve.wire import predict_pb2 as wire
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.harness import ServerUnderTest, running
from tests.support.serve.messages.cases import assert_answers

pytestmark = pytest.mark.engine


def tagged(request: wire.PredictRequest, request_id: str) -> wire.PredictRequest:
    request.request_id = request_id
    return request


class Feed:
    """Requests that a test sends one by one."""

    def __init__(self) -> None:
        self._queue: queue.Queue[wire.PredictRequest | bytes | None] = queue.Queue()

    def send(self, request: wire.PredictRequest | bytes | None) -> None:
        self._queue.put(request)

    def __iter__(self) -> Iterator[wire.PredictRequest | bytes]:
        while (request := self._queue.get()) is not None:
            yield request


def test_each_of_a_thousand_requests_on_a_stream_gets_the_answer_with_its_own_id(
    server: ServerUnderTest, small: Exported
) -> None:
    samples = {str(seed): small.sample(1 + seed % 5, seed) for seed in range(1000)}
    requests = (tagged(sample.request(), request_id) for request_id, sample in samples.items())
    seen = set()
    for request_id, outputs in server.client().stream(requests):
        assert not isinstance(outputs, PredictError), outputs
        assert_answers(outputs, small.answer(samples[request_id]))
        seen.add(request_id)
    assert seen == set(samples)


def test_an_answer_comes_before_the_next_request_is_sent(server: ServerUnderTest, small: Exported) -> None:
    feed, sample = Feed(), small.sample(2)
    answers = server.client().stream(iter(feed))
    for request_id in ("first", "second"):
        feed.send(tagged(sample.request(), request_id))
        got, outputs = next(answers)
        assert got == request_id
        assert_answers(outputs, small.answer(sample))
    feed.send(None)
    assert list(answers) == []


def test_a_wrong_request_on_a_stream_ends_nothing_but_itself(
    server: ServerUnderTest, small: Exported
) -> None:
    sample, wrong = small.sample(2), small.sample(2).request()
    wrong.num_rows = 3
    stranger = tagged(sample.request(), "stranger")
    requests = [tagged(sample.request(), "before"), tagged(wrong, "wrong"), tagged(sample.request(), "after")]
    found = dict(server.client().stream(requests))
    assert isinstance(found["wrong"], InvalidRequestError)
    assert "expected 36" in found["wrong"].message
    for request_id in ("before", "after"):
        assert_answers(found[request_id], small.answer(sample))
    (_, error), *_ = server.client(model="nobody").stream([stranger])
    assert isinstance(error, UnknownModelError)


def test_bytes_that_are_no_message_are_an_error_on_the_stream(
    server: ServerUnderTest, small: Exported
) -> None:
    sample = small.sample(1)
    call = server.channel().stream_stream(PREDICT_STREAM)
    data = [b"\xff", tagged(sample.request(), "good").SerializeToString()]
    found = [wire.StreamResponse.FromString(answer) for answer in call(iter(data))]
    assert {answer.request_id: answer.WhichOneof("result") for answer in found} == {
        "": "error",
        "good": "response",
    }


def test_an_empty_stream_ends_at_once(server: ServerUnderTest) -> None:
    assert list(server.client().stream([])) == []


def test_a_stopping_server_answers_what_a_stream_has_sent_and_refuses_what_it_sends_on(
    slow: Exported, tmp_path: Path
) -> None:
    """Though the client never stops sending: every accepted request is answered, and the server ends in time."""
    sample = slow.sample(1, max_ids=1)
    with running(slow.path, "--drain-timeout-s", "30", folder=tmp_path) as server:
        first_answers = threading.Semaphore(0)
        room = threading.Semaphore(8)
        over = threading.Event()

        def endless() -> Iterator[wire.PredictRequest]:
            for number in itertools.count():
                while not room.acquire(timeout=0.1):
                    if over.is_set():
                        return
                yield tagged(sample.request(), str(number))

        outcomes: Counter[str] = Counter()

        def read() -> None:
            try:
                for _, answer in server.client().stream(endless()):
                    room.release()
                    outcomes[type(answer).__name__] += 1
                    if outcomes.total() >= 16:
                        first_answers.release()
            except PredictError:
                pass
            finally:
                over.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert first_answers.acquire(timeout=60)
        code, stopped = server.stop()
        reader.join(60)
    assert (code, stopped["in_time"]) == (0, True)
    assert stopped["ok"] == stopped["accepted"] == outcomes["Answer"]
    assert set(outcomes) <= {"Answer", "UnavailableError"}


def test_a_client_that_leaves_a_stream_leaves_nothing_behind(
    server: ServerUnderTest, small: Exported
) -> None:
    sample = small.sample(1)
    for _ in range(20):
        feed = Feed()
        call = server.channel().stream_stream(PREDICT_STREAM)(
            r.SerializeToString() if isinstance(r, wire.PredictRequest) else r for r in feed
        )
        for i in range(10):
            feed.send(tagged(sample.request(), str(i)))
        next(call)
        call.cancel()
        feed.send(None)
    assert_answers(server.client().predict(sample.dense, sample.sparse, sample.weights), small.answer(sample))


def test_a_client_that_sends_and_never_reads_is_not_read_from_for_ever(
    small: Exported, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its answers fill the connection; then its requests stay where they are, and others are served as ever."""
    folder = tmp_path_factory.mktemp("greedy")
    with running(small.path, "--max-stream-requests", "8", folder=folder) as server:
        sample = small.sample(4000, max_ids=1)
        request = tagged(sample.request(), "x" * 100).SerializeToString()
        num_sent = 0
        stopped = threading.Event()

        def endless() -> Iterator[bytes]:
            nonlocal num_sent
            while not stopped.is_set() and num_sent < 100_000:
                num_sent += 1
                yield request

        before = server.rss_bytes()
        call = server.channel().stream_stream(PREDICT_STREAM)(endless())
        other = server.client()
        small_sample = small.sample(2)

        def accepted_beside(num_others: int) -> float:
            """How many requests of the stream were accepted, once others have asked."""
            for _ in range(300):
                found = other.predict(small_sample.dense, small_sample.sparse, small_sample.weights)
                assert_answers(found, small.answer(small_sample))
            return server.total("recsys_requests_accepted_total") - num_others

        # Until nothing more is read. 64 KiB of answers fit into a connection's window, some more into sockets; 4000
        # rows answer with 112 KB each.
        num_others = 300
        accepted = accepted_beside(num_others)
        while (later := accepted_beside(num_others := num_others + 300)) > accepted + 8:
            accepted = later
            assert accepted < 200
        assert later < 200
        assert server.rss_bytes() - before < 200e6
        stopped.set()
        call.cancel()
        with pytest.raises(grpc.RpcError):
            for _ in call:
                pass
        assert_answers(
            other.predict(small_sample.dense, small_sample.sparse, small_sample.weights),
            small.answer(small_sample),
        )
