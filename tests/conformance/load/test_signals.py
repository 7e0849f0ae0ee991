"""Signals under load: what was accepted is answered, what was not is refused in a way that clients can retry."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from serve.client.packing import build_request, read_response
from serve.wire import predict_pb2 as wire
from tests.conformance.support.artifacts import Exported, export_slow
from tests.conformance.support.harness import ENGINE, ServerUnderTest, running

pytestmark = pytest.mark.engine

NUM_CLIENTS = 16


class Load:
    """Clients that ask again and again until they are told to stop, or the server is gone.

    Attributes:
        ends: how requests ended, by status.
        wrong: answers that were not right.
    """

    def __init__(self, server: ServerUnderTest) -> None:
        self.ends: Counter[grpc.StatusCode] = Counter()
        self.wrong: list[list[float]] = []
        self._server = server
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._going = threading.Semaphore(0)

    @contextmanager
    def going(self) -> Iterator[None]:
        """Start, and wait for some answers; at the end wait for the clients."""
        with ThreadPoolExecutor(NUM_CLIENTS) as pool:
            asking = [pool.submit(self._ask, number) for number in range(NUM_CLIENTS)]
            for _ in range(10 * NUM_CLIENTS):
                self._going.acquire()
            try:
                yield
            finally:
                self._stopped.set()
            for client in asking:
                client.result()

    def go_on_for(self, num_answers: int) -> None:
        """Wait for some more answers."""
        while self._going.acquire(blocking=False):
            pass
        for _ in range(num_answers):
            self._going.acquire()

    def _ask(self, number: int) -> None:
        call = self._server.predict_bytes()
        rows = [[number]] * 3
        data = build_request({}, {"id": rows}).SerializeToString()
        while not self._stopped.is_set():
            code = grpc.StatusCode.OK
            try:
                found = read_response(wire.PredictResponse.FromString(call(data, timeout=60)))["score"]
            except grpc.RpcError as error:
                code = error.code()
            with self._lock:
                self.ends[code] += 1
                if code is grpc.StatusCode.OK and list(found) != [number] * 3:
                    self.wrong.append(list(found))
            self._going.release()
            if code is not grpc.StatusCode.OK:
                return


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A slow model that is ready soon."""
    return export_slow(tmp_path_factory.mktemp("artifacts") / "narrow", width=256)


@pytest.mark.parametrize(
    ("numbers", "polling_threads"),
    [
        pytest.param([signal.SIGTERM], 1, id="term"),
        pytest.param([signal.SIGTERM], 3, id="term-of-several-threads"),
        pytest.param([signal.SIGINT], 1, id="int"),
        pytest.param([signal.SIGTERM, signal.SIGTERM], 2, id="term-twice"),
        pytest.param([signal.SIGTERM, signal.SIGHUP], 1, id="hup-while-it-stops"),
    ],
)
def test_a_server_that_is_stopped_answers_what_it_has_accepted(
    narrow: Exported, tmp_path: Path, numbers: list[signal.Signals], polling_threads: int
) -> None:
    with running(narrow.path, "--polling-threads", str(polling_threads), folder=tmp_path) as server:
        if ENGINE == "native":
            assert server.total("recsys_polling_threads") == polling_threads
        load = Load(server)
        with load.going():
            for number in numbers:
                server.signal(number)
            code, last = server.finish()
        assert code == 0
        assert last["event"] == "stopped"
        assert last["in_time"] is True
        # Whoever was not answered was told so in a way that says: not computed, try another server. CANCELLED is what
        # gRPC tells a call that had reached the socket and nobody behind it.
        refused = load.ends[grpc.StatusCode.UNAVAILABLE] + load.ends[grpc.StatusCode.CANCELLED]
        assert load.ends[grpc.StatusCode.OK] + refused == sum(load.ends.values())
        assert not load.wrong
        assert last["ok"] == load.ends[grpc.StatusCode.OK]
        assert last["failed"] == last["cancelled"] == last["expired"] == 0
        assert last["unavailable"] <= refused


def test_what_waits_in_the_queue_is_answered_before_the_server_ends(narrow: Exported, tmp_path: Path) -> None:
    with running(narrow.path, "--max-batch-rows", "64", folder=tmp_path) as server:
        call = server.predict_bytes()
        data = [build_request({}, {"id": [[number]] * 400}).SerializeToString() for number in range(20)]
        calls = [call.future(one, timeout=120) for one in data]
        while server.total("recsys_requests_accepted_total") < 20:
            pass
        code, last = server.stop()
        assert code == 0
        assert last["ok"] == 20
        for number, one in enumerate(calls):
            found = read_response(wire.PredictResponse.FromString(one.result()))["score"]
            assert list(found) == [number] * 400


def test_hangups_under_load_end_nothing(narrow: Exported, tmp_path: Path) -> None:
    with running(narrow.path, folder=tmp_path) as server:
        load = Load(server)
        with load.going():
            for _ in range(20):
                server.signal(signal.SIGHUP)
                load.go_on_for(10)
        assert set(load.ends) == {grpc.StatusCode.OK}
        assert not load.wrong
        code, last = server.stop()
        assert code == 0
        assert last["ok"] == load.ends[grpc.StatusCode.OK]
