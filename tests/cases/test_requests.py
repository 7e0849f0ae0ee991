"""The table of requests that the C++ tests read is what Python makes of them."""

from __future__ import annotations

import json

import pytest

from serve.engine.reference.raw_request import RawRequest
from tests.cases.requests import FILE, dumps, made, outcome_of, request_json, request_of

TABLE = json.loads(FILE.read_text())


@pytest.mark.parametrize("case", TABLE["cases"], ids=lambda case: case["name"])
def test_each_request_of_the_table_has_the_outcome_that_stands_there(case: dict) -> None:
    outcome = outcome_of(case, request_of(case["request"]))
    assert outcome == {
        key: case[key]
        for key in ("error", "field", "num_ids", "spread_bytes", "first_ids", "batch")
        if key in case
    }


def test_the_table_is_not_out_of_date() -> None:
    assert FILE.read_text() == dumps(made()), "write it with python -m tests.cases.requests"


def test_requests_are_read_as_they_were_written() -> None:
    for case in TABLE["cases"]:
        request = request_of(case["request"])
        assert isinstance(request, RawRequest)
        assert request_json(request) == case["request"]
