"""The queue under load: what waits, what is refused, who goes first. The model takes a millisecond for some rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import grpc
import pytest

from serve.client.packing import build_request, read_response
from serve.wire import predict_pb2 as wire
from tests.conformance.support.artifacts import Exported, export_slow
from tests.conformance.support.harness import ServerUnderTest, running

pytestmark = pytest.mark.engine

PUSHBACK = "grpc-retry-pushback-ms"
# Rows of a request that runs long enough for others to join the queue meanwhile, whatever the machine is busy with.
PLUG_ROWS = 4096
BATCH_ROWS = 64
_WINDOW_US = 60_000_000


def request(rows: list[list[int]], priority: wire.Priority = wire.PRIORITY_UNSPECIFIED) -> bytes:
    """A request of these rows of IDs."""
    message = build_request({}, {"id": rows})
    message.priority = priority
    data: bytes = message.SerializeToString()
    return data


def scores(call: grpc.Future) -> list[float]:
    """What came back, row by row: the row's ID."""
    return list(read_response(wire.PredictResponse.FromString(call.result()))["score"])


def refusal(call: grpc.Future) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """How a refused call ended: status, text, trailing metadata."""
    with pytest.raises(grpc.RpcError) as caught:
        call.result()
    error = caught.value
    return error.code(), error.details(), dict(error.trailing_metadata())


class Line:
    """Requests under way, and what the server has counted since the case began.

    Attributes:
        ended: names in the order in which their requests ended.
    """

    def __init__(self, server: ServerUnderTest) -> None:
        self.server = server
        self.ended: list[str] = []
        self._call = server.predict_bytes()
        self._lock = threading.Lock()
        self._before = server.metrics()

    def send(self, rows: list[list[int]], name: str = "", **options: Any) -> grpc.Future:
        """Send and go on."""
        data = request(rows, options.pop("priority", wire.PRIORITY_UNSPECIFIED))
        call = self._call.future(data, timeout=options.pop("timeout", 120))

        def done(_: object) -> None:
            with self._lock:
                self.ended.append(name)

        call.add_done_callback(done)
        return call

    def send_and_wait(self, rows: list[list[int]], name: str = "", **options: Any) -> grpc.Future:
        """Send, and wait until it is accepted."""
        accepted = self.count("recsys_requests_accepted_total")
        call = self.send(rows, name, **options)
        self.until(lambda: self.count("recsys_requests_accepted_total") > accepted)
        return call

    def send_all_and_wait(self, requests: list[list[list[int]]]) -> list[grpc.Future]:
        """Send requests at once, and wait until all are accepted."""
        accepted = self.count("recsys_requests_accepted_total")
        calls = [self.send(rows) for rows in requests]
        self.until(lambda: self.count("recsys_requests_accepted_total") == accepted + len(requests))
        return calls

    def plugged(self) -> grpc.Future:
        """Keep the executor busy; returns once it is."""
        batches = self.count("recsys_batch_rows_count")
        call = self.send([[7]] * PLUG_ROWS, "plug")
        self.until(lambda: self.count("recsys_batch_rows_count") > batches)
        return call

    def is_plugged(self) -> bool:
        """Whether nothing has run since the case began but the plug."""
        return self.count("recsys_batch_rows_count") == 1

    def behind_a_plug(self, send: Callable[[], list[grpc.Future]]) -> list[grpc.Future]:
        """What `send` sent while the executor was busy. A machine may be so slow that it was not: then once more."""
        for _ in range(20):
            plug = self.plugged()
            calls = send()
            if self.is_plugged():
                return calls
            for call in (plug, *calls):
                if not call.cancelled():
                    call.exception()
            self.until(lambda: self.pending() == 0)
            self._before, self.ended[:] = self.server.metrics(), []
        raise AssertionError("the plug always ended before everything was sent")

    def until(self, condition: Callable[[], bool]) -> None:
        """Look at the server's metrics, or at what has ended, again and again."""
        for _ in range(10_000):
            if condition():
                return
            threading.Event().wait(0.001)
        changed = {
            name: value for name, value in self.server.metrics().items() if value != self._before.get(name)
        }
        raise AssertionError(f"never came; changed since the case began: {changed}"[:2000])

    def count(self, name: str, **labels: str) -> float:
        """What this case has added to the server's counts."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            value - self._before.get(sample, 0)
            for sample, value in self.server.metrics().items()
            if sample.partition("{")[0] == name and all(label in sample for label in wanted)
        )

    def pending(self, what: str = "rows") -> float:
        """What waits, without what runs."""
        return self.server.total(f"recsys_pending_{what}")


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A slow model that is ready soon."""
    return export_slow(tmp_path_factory.mktemp("artifacts") / "narrow", width=768)


def started(
    artifact: Exported, factory: pytest.TempPathFactory, **flags: int
) -> AbstractContextManager[ServerUnderTest]:
    """A server with these settings."""
    names = [part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    # One batch at a time, whatever the machine has.
    return running(artifact.path, "--executors", "1", *names, folder=factory.mktemp("server"))


@pytest.fixture(scope="module")
def roomy_server(narrow: Exported, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerUnderTest]:
    with started(
        narrow, tmp_path_factory, max_batch_rows=BATCH_ROWS, priority_window_us=_WINDOW_US
    ) as server:
        yield server


@pytest.fixture(scope="module")
def tight_server(narrow: Exported, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerUnderTest]:
    limits = {
        "max_queue_rows": PLUG_ROWS,
        "max_queue_ids": 7000,
        "max_request_ids": 7000,
        "max_queue_bytes": 60_000,
    }
    with started(
        narrow, tmp_path_factory, max_batch_rows=BATCH_ROWS, priority_window_us=0, **limits
    ) as server:
        yield server


@pytest.fixture(scope="module")
def patient_server(narrow: Exported, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerUnderTest]:
    limits = {"max_request_rows": 100, "max_request_ids": 100, "max_queue_bytes": 1200}
    with started(narrow, tmp_path_factory, max_batch_rows=10, max_delay_us=30_000_000, **limits) as server:
        yield server


@pytest.fixture
def roomy(roomy_server: ServerUnderTest) -> Line:
    """A queue with room for everything; urgent requests may overtake those that came up to a minute before."""
    return Line(roomy_server)


@pytest.fixture
def tight(tight_server: ServerUnderTest) -> Line:
    """A queue that is soon full, and keeps the order of arrival."""
    return Line(tight_server)


@pytest.fixture
def patient(patient_server: ServerUnderTest) -> Line:
    """A queue that waits half a minute for a batch of ten rows."""
    return Line(patient_server)


@pytest.mark.parametrize(
    ("waiting", "refused", "text"),
    [
        ([[]] * 4095, [[]] * 2, "queue: 4095 rows wait, at most 4096 may"),
        ([[1] * 7000], [[1]], "queue: 7000 IDs wait, at most 7000 may"),
        ([[1] * 100] * 40, [[1]] * 3000, "bytes wait, at most 60000 may"),
    ],
    ids=["rows", "ids", "bytes"],
)
def test_a_full_queue_refuses_at_once_and_says_when_to_come_again(
    tight: Line, waiting: list[list[int]], refused: list[list[int]], text: str
) -> None:
    def send() -> list[grpc.Future]:
        waits, one_more = tight.send_and_wait(waiting), tight.send(refused)
        one_more.exception()
        return [waits, one_more]

    # At once: nothing of what was before it had to end first.
    waits, one_more = tight.behind_a_plug(send)
    code, details, metadata = refusal(one_more)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert text in details
    assert 1 <= int(metadata[PUSHBACK]) <= 60_000
    assert scores(waits) == [float(sum(row)) for row in waiting]
    assert scores(tight.send([[5]])) == [5]  # there is room again
    assert tight.count("recsys_requests_total", outcome="rejected") == 1
    assert tight.count("recsys_requests_total", outcome="ok") == 3


def test_a_client_that_obeys_the_hint_is_answered(tight: Line) -> None:
    def send() -> list[grpc.Future]:
        waits, one_more = tight.send_and_wait([[]] * PLUG_ROWS), tight.send([[3]])
        one_more.exception()
        return [waits, one_more]

    _, call = tight.behind_a_plug(send)
    for _ in range(1000):
        if call.exception() is None:
            break
        threading.Event().wait(int(refusal(call)[2][PUSHBACK]) / 1000)
        call = tight.send([[3]])
    assert scores(call) == [3]
    assert tight.count("recsys_requests_total", outcome="rejected") > 0


def send_one_of_each(line: Line) -> list[str]:
    """The least urgent first, while something else runs: who was answered before whom."""
    priorities = {"low": wire.PRIORITY_LOW, "normal": wire.PRIORITY_UNSPECIFIED, "high": wire.PRIORITY_HIGH}
    calls = line.behind_a_plug(
        lambda: [
            line.send_and_wait([[number]] * BATCH_ROWS, name, priority=priority)
            for number, (name, priority) in enumerate(priorities.items())
        ]
    )
    for number, call in enumerate(calls):
        assert scores(call) == [number] * BATCH_ROWS
    line.until(lambda: len(line.ended) == 4)
    return [name for name in line.ended if name in priorities]


def test_urgent_requests_overtake(roomy: Line) -> None:
    assert send_one_of_each(roomy) == ["high", "normal", "low"]


def test_nothing_is_overtaken_by_what_comes_later_than_the_window(tight: Line) -> None:
    assert send_one_of_each(tight) == ["low", "normal", "high"]


def test_a_request_whose_deadline_passes_in_the_queue_is_not_computed(roomy: Line) -> None:
    def send() -> list[grpc.Future]:
        calls = [roomy.send([[9]] * 10, timeout=0.1) for _ in range(5)]
        for call in calls:
            call.exception()
        return calls

    calls = roomy.behind_a_plug(send)
    assert {refusal(call)[0] for call in calls} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    assert scores(roomy.send([[3]])) == [3]
    assert roomy.count("recsys_batch_rows_sum") == PLUG_ROWS + 1
    # A deadline may pass before the server has read the request.
    accepted = roomy.count("recsys_requests_accepted_total") - 2
    roomy.until(lambda: roomy.count("recsys_requests_total", outcome="expired") >= accepted)
    assert roomy.pending() == 0


def test_a_request_that_was_given_up_leaves_the_queue(roomy: Line) -> None:
    waited = []

    def send() -> list[grpc.Future]:
        calls = roomy.send_all_and_wait([[[9]] * 10] * 5)
        waited.append(roomy.pending())
        for call in calls:
            call.cancel()
        roomy.until(lambda: roomy.pending() == 0)
        return calls

    roomy.behind_a_plug(send)
    assert waited[-1] == 50
    assert (roomy.pending("ids"), roomy.pending("bytes")) == (0, 0)
    roomy.until(lambda: roomy.count("recsys_requests_total", outcome="ok") == 1)
    assert roomy.count("recsys_batch_rows_sum") == PLUG_ROWS
    assert roomy.count("recsys_requests_total", outcome="cancelled") == 5


def test_small_requests_go_before_a_huge_one_that_came_first(roomy: Line) -> None:
    def send() -> list[grpc.Future]:
        huge = roomy.send_and_wait([[7]] * PLUG_ROWS, "huge")
        return [huge, *roomy.send_all_and_wait([[[number]] for number in range(20)])]

    huge, *calls = roomy.behind_a_plug(send)
    assert [scores(call) for call in calls] == [[number] for number in range(20)]
    assert len(scores(huge)) == PLUG_ROWS
    roomy.until(lambda: len(roomy.ended) == 22)
    assert roomy.ended[-1] == "huge"


def test_a_batch_grows_while_another_runs_and_holds_no_more_than_it_may(roomy: Line) -> None:
    calls = roomy.behind_a_plug(lambda: roomy.send_all_and_wait([[[number]] * 3 for number in range(50)]))
    assert [scores(call) for call in calls] == [[number] * 3 for number in range(50)]
    # 21 requests of 3 rows fit into 64; more batches where the machine is so slow that the first one ends meanwhile.
    assert 1 + 3 <= roomy.count("recsys_batch_rows_count") <= 1 + 12
    assert roomy.count("recsys_batch_requests_sum") == 1 + 50


def test_without_a_delay_a_request_alone_is_a_batch_alone(roomy: Line) -> None:
    for number in range(20):
        assert scores(roomy.send([[number]])) == [number]
    assert roomy.count("recsys_batch_rows_count") == 20


def test_with_a_delay_requests_share_a_batch_and_the_one_that_fills_it_ends_the_wait(patient: Line) -> None:
    calls = [patient.send([[number]]) for number in range(10)]
    assert [scores(call) for call in calls] == [[number] for number in range(10)]
    assert patient.count("recsys_batch_rows_count") == 1


def test_a_delay_makes_no_deadline_pass(patient: Line) -> None:
    assert scores(patient.send([[4]], timeout=20)) == [4]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([[1]] * 101, "num_rows: got 101, expected at most 100 in one request"),
        ([[1] * 101], "got 101 IDs, expected at most 100 in one request"),
        ([[1]] * 100, "bytes, expected at most 1200 in one request"),
    ],
    ids=["rows", "ids", "bytes"],
)
def test_a_request_larger_than_it_may_be_is_refused(patient: Line, rows: list[list[int]], text: str) -> None:
    code, details, _ = refusal(patient.send(rows))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text in details
    assert patient.count("recsys_requests_accepted_total") == 0


def test_a_neighbour_is_answered_before_most_of_a_flood(roomy: Line) -> None:
    neighbour = Line(roomy.server)
    # One order of all that ends.
    neighbour.ended = roomy.ended

    def send() -> list[grpc.Future]:
        flood = roomy.send_all_and_wait([[[number]] * BATCH_ROWS for number in range(30)])
        return [neighbour.send_and_wait([[3]], "neighbour"), *flood]

    call, *flood = roomy.behind_a_plug(send)
    assert scores(call) == [3]
    assert [scores(call)[0] for call in flood] == list(range(30))
    roomy.until(lambda: len(roomy.ended) == 32)
    # The plug, and a turn of the flood that was taken before or with it; the rest is for how fast threads are.
    assert roomy.ended.index("neighbour") <= 15


def test_a_full_queue_has_room_for_a_neighbour_of_whoever_filled_it(tight: Line) -> None:
    def send() -> list[grpc.Future]:
        flood = tight.send_all_and_wait([[[]] * BATCH_ROWS] * (PLUG_ROWS // BATCH_ROWS))
        call = Line(tight.server).send_and_wait([[3]])
        tight.until(
            lambda: tight.count("recsys_requests_total", outcome="rejected") == 1 or not tight.is_plugged()
        )
        again = tight.send([[5]] * BATCH_ROWS)
        again.exception()
        return [call, again, *flood]

    call, again, *flood = tight.behind_a_plug(send)
    (refused,) = (one for one in flood if one.exception() is not None)
    code, details, metadata = refusal(refused)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "queue: 4096 rows wait, at most 4096 may, and most of them are this connection's" in details
    assert 1 <= int(metadata[PUSHBACK]) <= 60_000
    # Whoever filled it is refused as ever.
    assert refusal(again)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert scores(call) == [3]


def test_a_hundred_clients_at_a_full_queue_are_answered_or_refused_and_all_are_counted(tight: Line) -> None:
    def one(number: int) -> str:
        call = tight.send([[number]] * 70)
        if call.exception() is None:
            assert scores(call) == [number] * 70
            return "OK"
        return refusal(call)[0].name

    outcomes: list[str] = []
    num_plugs = 0
    # Where the machine is so slow that the queue was never full, once more.
    while set(outcomes) != {"OK", "RESOURCE_EXHAUSTED"}:
        assert set(outcomes) <= {"OK"}
        assert num_plugs < 20
        plug = tight.plugged()
        num_plugs += 1
        with ThreadPoolExecutor(100) as pool:
            outcomes += pool.map(one, range(200))
        assert plug.exception() is None
    num_ok = num_plugs + outcomes.count("OK")
    tight.until(lambda: tight.count("recsys_requests_total", outcome="ok") == num_ok)
    assert tight.count("recsys_requests_accepted_total") == num_ok
    assert tight.count("recsys_requests_total", outcome="rejected") == outcomes.count("RESOURCE_EXHAUSTED")
