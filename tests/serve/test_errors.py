"""How errors are answered and counted, and that the native engine's kinds are all known."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest

from serve.engine.native import ERROR_OF_KIND
from serve.engine.native_events import error_of_answer
from serve.errors import (
    ERROR_KINDS,
    DrainingError,
    ErrorKind,
    NotAllowedError,
    QueueFullError,
    RequestError,
    RequestTooLargeError,
    is_foreseen,
    kind_of,
    status_of,
)
from serve.metrics.counters import OUTCOMES

ERROR_H = Path(__file__).parents[2] / "cpp_client" / "include" / "recsys" / "error.h"
TEXT = "field: got 1, expected 2"


@pytest.mark.parametrize("kind", ERROR_KINDS, ids=lambda kind: kind.name)
def test_every_error_has_a_status_and_an_outcome_and_keeps_its_text(kind: ErrorKind) -> None:
    error = kind.error(TEXT)
    assert kind_of(error) is kind
    assert status_of(error) == (kind.code, TEXT)
    assert kind.outcome in OUTCOMES
    assert 400 <= kind.http_status < 600


def test_each_code_has_one_outcome_so_that_both_engines_count_alike() -> None:
    assert len({(kind.code, kind.outcome) for kind in ERROR_KINDS}) == len(
        {kind.code for kind in ERROR_KINDS}
    )


@pytest.mark.parametrize("kind", ERROR_KINDS, ids=lambda kind: kind.name)
def test_an_answer_of_the_native_engine_has_the_code_of_the_error(kind: ErrorKind) -> None:
    error = error_of_answer(kind.code.value[0], TEXT, 7)
    assert error is not None
    assert status_of(error) == (kind.code, TEXT)


def test_busy_and_stopping_tell_clients_to_come_back_and_wrong_does_not() -> None:
    assert kind_of(QueueFullError("full")).code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert kind_of(DrainingError("stopping")).code is grpc.StatusCode.UNAVAILABLE
    assert kind_of(RequestError("wrong")).code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("parent", [NotAllowedError, RequestTooLargeError, QueueFullError])
def test_a_subclass_is_of_the_kind_of_its_nearest_ancestor(parent: type[Exception]) -> None:
    error: Exception = type("Special", (parent,), {})(TEXT)
    assert kind_of(error).error is parent
    assert status_of(error)[1] == TEXT


def test_the_text_of_an_unforeseen_error_stays_in_the_log() -> None:
    error = KeyError("/secret/path 0x7f00")
    assert not is_foreseen(error)
    code, text = status_of(error)
    assert code is grpc.StatusCode.INTERNAL
    assert "secret" not in text


def test_every_kind_of_error_of_the_native_engine_has_a_class() -> None:
    body = re.search(r"enum class ErrorKind \{(.*?)\};", ERROR_H.read_text(), re.DOTALL)
    assert body is not None
    names = re.findall(r"^ *k(\w+),", body[1], re.MULTILINE)
    kinds = {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in names}
    assert kinds == set(ERROR_OF_KIND)
