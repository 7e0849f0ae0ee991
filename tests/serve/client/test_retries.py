"""Calls that are tried again, and clients in other processes, against gRPC servers of the tests' own."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from serve.client import GET_MODEL_METADATA, AsyncClient, Client, Retries, Settings
from serve.client.errors import InvalidRequestError, OverloadedError, PredictError, UnavailableError
from serve.wire import predict_pb2 as wire

NO_RETRIES = Settings(retries=Retries(max_attempts=1))


class Failing(grpc.GenericRpcHandler):
    """Fails the first calls of the metadata method with the codes given, and answers all others."""

    def __init__(self, codes: list[grpc.StatusCode], pushback: str | None = None) -> None:
        self.codes, self.pushback, self.num_calls = list(codes), pushback, 0

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler | None:
        if handler_call_details.method != GET_MODEL_METADATA:
            return None
        return grpc.unary_unary_rpc_method_handler(
            self._answer,
            request_deserializer=wire.GetModelMetadataRequest.FromString,
            response_serializer=wire.ModelMetadata.SerializeToString,
        )

    def _answer(
        self, request: wire.GetModelMetadataRequest, context: grpc.ServicerContext
    ) -> wire.ModelMetadata:
        self.num_calls += 1
        if self.codes:
            if self.pushback is not None:
                context.set_trailing_metadata([("grpc-retry-pushback-ms", self.pushback)])
            context.abort(self.codes.pop(0), "not now")
        return wire.ModelMetadata(model=f"{request.model} from {os.getpid()}")


@pytest.fixture
def served() -> Iterator[Callable[[Failing], str]]:
    """Serve a handler; returns its address."""
    servers = []

    def serve(handler: Failing) -> str:
        server = grpc.server(ThreadPoolExecutor(2), handlers=(handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield serve
    for server in servers:
        server.stop(None).wait()


UNAVAILABLE, EXHAUSTED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("codes", "pushback", "num_calls", "error"),
    [
        ([UNAVAILABLE, UNAVAILABLE], None, 3, None),
        ([EXHAUSTED], "1", 2, None),
        ([UNAVAILABLE], "0", 2, None),
        # The message was too large.
        ([EXHAUSTED], None, 1, OverloadedError),
        ([UNAVAILABLE] * 3, None, 3, UnavailableError),
        # Not a number, or a negative one: the server asks for no retry.
        ([EXHAUSTED], "-1", 1, OverloadedError),
        ([grpc.StatusCode.INVALID_ARGUMENT], None, 1, InvalidRequestError),
    ],
    ids=["unavailable", "full", "at once", "too large", "attempts run out", "no retry wanted", "refused"],
)
@pytest.mark.parametrize("is_async", [False, True], ids=["blocking", "asyncio"])
def test_which_calls_are_tried_again(
    served: Callable[[Failing], str],
    codes: list[grpc.StatusCode],
    pushback: str | None,
    num_calls: int,
    error: type[PredictError] | None,
    is_async: bool,
) -> None:
    handler = Failing(codes, pushback)
    address = served(handler)

    async def awaited() -> wire.ModelMetadata:
        async with AsyncClient(address, model="m") as client:
            return await client.metadata()

    def called() -> wire.ModelMetadata:
        if is_async:
            return asyncio.run(awaited())
        with Client(address, model="m") as client:
            return client.metadata()

    if error is None:
        assert called().model.startswith("m from")
    else:
        with pytest.raises(error, match="not now") as raised:
            called()
        assert raised.value.num_attempts == num_calls
    assert handler.num_calls == num_calls


def test_without_retries(served: Callable[[Failing], str]) -> None:
    handler = Failing([UNAVAILABLE])
    with Client(served(handler), settings=NO_RETRIES) as client, pytest.raises(UnavailableError):
        client.metadata()
    assert handler.num_calls == 1


def test_retries_are_bounded_over_all_calls(served: Callable[[Failing], str]) -> None:
    handler = Failing([UNAVAILABLE] * 1000)
    settings = Settings(retries=Retries(first_backoff_s=0.0, budget_burst=4))
    with Client(served(handler), settings=settings) as client:
        for _ in range(30):
            with pytest.raises(UnavailableError):
                client.metadata()
    # The burst, and a tenth of the calls.
    assert handler.num_calls == 30 + 4 + 3


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"max_attempts": 0}, "max_attempts: got 0, expected at least 1"),
        ({"first_backoff_s": -1.0}, "first_backoff_s: got -1.0, expected at least 0"),
        ({"budget_burst": float("inf")}, "budget_burst: got inf"),
    ],
)
def test_wrong_numbers_are_named(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Retries(**wrong)


@pytest.mark.parametrize(
    ("num_attempts", "retry_after_ms", "remaining_s", "wait_s"),
    [(1, None, 9, 0.015), (2, None, 9, 0.03), (2, 40, 9, 0.042), (2, 40, 0.04, None), (3, None, 9, None)],
)
def test_waits(
    num_attempts: int, retry_after_ms: int | None, remaining_s: float, wait_s: float | None
) -> None:
    error = UnavailableError(UNAVAILABLE, "not now", retry_after_ms)
    error.num_attempts = num_attempts
    assert Retries().wait_s(error, remaining_s, draw=0.5) == pytest.approx(wait_s)


def model_of(client: Client) -> str:
    """What a client's server answers, asked in another process."""
    return client.metadata().model


def failed_by(client: Client) -> None:
    """Raises the client's error in another process."""
    client.metadata()


def test_a_client_is_sent_to_other_processes(served: Callable[[Failing], str]) -> None:
    address = served(Failing([]))
    spawning = multiprocessing.get_context("spawn")
    with Client(address, model="m") as client, ProcessPoolExecutor(1, spawning) as pool:
        assert pool.submit(model_of, client).result() == model_of(client)
        assert model_of(pickle.loads(pickle.dumps(client))) == model_of(client)


def test_errors_come_back_from_other_processes(served: Callable[[Failing], str]) -> None:
    address = served(Failing([grpc.StatusCode.INVALID_ARGUMENT]))
    spawning = multiprocessing.get_context("spawn")
    with Client(address) as client, ProcessPoolExecutor(1, spawning) as pool:
        failed = pool.submit(failed_by, client)
        with pytest.raises(InvalidRequestError, match="not now"):
            failed.result()


# A program of its own: the server must not be in the process that forks.
_FORKS = """
import os, sys
from serve.client import Client
with Client(sys.argv[1], model="m") as client:
    first = client.metadata().model
    if (child := os.fork()) == 0:
        client.close()
        os._exit(0 if client.metadata().model == first else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert client.metadata().model == first
print("both answered")
"""


def test_a_forked_process_connects_by_itself(served: Callable[[Failing], str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _FORKS, served(Failing([]))], capture_output=True, text=True, timeout=60
    )
    assert (ran.stdout, ran.returncode) == ("both answered\n", 0), ran.stderr
