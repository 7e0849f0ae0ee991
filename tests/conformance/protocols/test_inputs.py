"""Numbers that are none, and IDs that no table has: refused or taken, as the model's settings and signature say."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import numpy as np
import pytest
import torch

from recsys.inputs.signature import IdPolicy
from serve.client.errors import InvalidRequestError
from serve.wire import predict_pb2 as wire
from tests.cases.rows_of_ids import read, row_of
from tests.conformance.support.artifacts import (
    HASHED,
    KNOWN_IDS,
    NUM_POLICY_ROWS,
    POLICY_TABLES,
    Exported,
    hashed_rows,
)
from tests.conformance.support.harness import ServerUnderTest, running, status_of
from tests.support.serve.messages.cases import Sample, assert_answers

pytestmark = pytest.mark.engine

NON_FINITE = [np.nan, np.inf, -np.inf]
FAR = [-1, NUM_POLICY_ROWS, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63)]


def with_value(small: Exported, part: str, name: str, value: float) -> Sample:
    """Three rows, the second of which holds ``value``."""
    sample = small.sample(3, seed=5)
    sample.sparse["tags"][1], sample.weights["tags"][1] = [1, 2], [0.5, 0.5]
    getattr(sample, part)[name][1][-1] = value
    return sample


@pytest.mark.parametrize("value", NON_FINITE, ids=str)
@pytest.mark.parametrize(
    ("part", "name"), [("dense", "context"), ("dense", "price"), ("weights", "tags")], ids=lambda text: text
)
def test_what_is_no_number_is_refused_by_its_place(
    server: ServerUnderTest, small: Exported, part: str, name: str, value: float
) -> None:
    request = with_value(small, part, name, value).request()
    code, text = status_of(lambda: server.predict_bytes()(request.SerializeToString()))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert f"{name!r}]" in text
    assert f"got {value}" in text


@pytest.fixture(scope="module")
def lenient(small: Exported, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerUnderTest]:
    """The small model, where what is no number may reach it."""
    with running(small.path, "--allow-non-finite", folder=tmp_path_factory.mktemp("lenient")) as started:
        yield started


@pytest.mark.parametrize("value", NON_FINITE, ids=str)
@pytest.mark.parametrize(("part", "name"), [("dense", "price"), ("weights", "tags")], ids=lambda text: text)
def test_what_is_no_number_reaches_a_model_that_is_to_have_it_and_no_other_row(
    lenient: ServerUnderTest, small: Exported, part: str, name: str, value: float
) -> None:
    sample = with_value(small, part, name, value)
    found = lenient.client().predict(sample.dense, sample.sparse, sample.weights)
    assert_answers(found, small.answer(sample))
    assert [bool(np.isfinite(row).all()) for row in found["vectors"]] == [True, False, True]


def rows_read(server: ServerUnderTest, policy: IdPolicy | str, ids: list[int]) -> list[float]:
    """For each ID the sum of what it reads: the row's number from 1, or 0 for no row."""
    sparse = {other: [[0]] * len(ids) for other in POLICY_TABLES}
    sparse[str(policy)] = [[number] for number in ids]
    return list(server.client().predict(sparse=sparse)[str(policy)])


@pytest.mark.parametrize("policy", IdPolicy, ids=str)
def test_ids_of_the_table_read_their_rows(policies: ServerUnderTest, policy: IdPolicy) -> None:
    if policy.takes_rows:
        found = rows_read(policies, policy, list(range(NUM_POLICY_ROWS)))
        assert found == [number + 1 for number in range(NUM_POLICY_ROWS)]


@pytest.mark.parametrize("number", FAR, ids=str)
def test_an_id_that_the_table_lacks_is_refused_by_its_place(policies: ServerUnderTest, number: int) -> None:
    with pytest.raises(InvalidRequestError, match=rf"'reject'.*got {number}\b.*expected 0 to 9|{number}"):
        rows_read(policies, IdPolicy.REJECT, [0, number, 9])


def test_an_id_that_the_table_lacks_is_taken_modulo_its_rows(policies: ServerUnderTest) -> None:
    found = rows_read(policies, IdPolicy.HASH, FAR)
    assert found == [number % NUM_POLICY_ROWS + 1 for number in FAR]


def test_the_metadata_names_the_policies(policies: ServerUnderTest) -> None:
    features = policies.client().metadata().sparse
    named = {feature.name: wire.IdPolicy.Name(feature.tables[0].id_policy) for feature in features}
    expected = {str(policy): f"ID_POLICY_{policy.name}" for policy in IdPolicy}
    assert named == expected | {HASHED: "ID_POLICY_MAPPED"}
    assert [feature.name for feature in features if feature.HasField("id_limit")] == ["reject"]


def test_every_id_is_mixed_before_it_is_taken_modulo_the_rows(policies: ServerUnderTest) -> None:
    ids = [one for one, *_ in read()]
    found = rows_read(policies, IdPolicy.FMIX64, ids)
    assert found == [row_of(one, NUM_POLICY_ROWS) + 1 for one in ids]


def test_an_id_that_the_table_lacks_reads_zeros(policies: ServerUnderTest) -> None:
    assert rows_read(policies, IdPolicy.ZERO, [0, *FAR, 9]) == [1, *(0 for _ in FAR), 10]


def test_raw_ids_read_rows_of_their_own_and_unknown_ones_the_last(policies: ServerUnderTest) -> None:
    known = rows_read(policies, IdPolicy.MAPPED, list(KNOWN_IDS))
    assert sorted(known) == sorted(set(known))
    unknown = [number + 1 for number in KNOWN_IDS if number + 1 < 2**63]
    assert set(rows_read(policies, IdPolicy.MAPPED, unknown)) == {NUM_POLICY_ROWS}
    assert NUM_POLICY_ROWS not in known


def test_raw_ids_without_a_row_of_their_own_read_one_by_hash(policies: ServerUnderTest) -> None:
    ids = [*KNOWN_IDS, *FAR, *range(20, 60)]
    found = rows_read(policies, HASHED, ids)
    assert found == [row + 1 for row in hashed_rows()(torch.tensor(ids)).tolist()]
    assert len(set(found[: len(KNOWN_IDS)])) == len(KNOWN_IDS)


def test_a_bad_id_of_one_table_does_not_touch_the_others(policies: ServerUnderTest) -> None:
    sparse = {
        "reject": [[3]],
        "hash": [[-1]],
        "zero": [[-1]],
        "mapped": [[12345]],
        "fmix64": [[-1]],
        HASHED: [[]],
    }
    found = policies.client().predict(sparse=sparse)
    assert {name: list(values) for name, values in found.items()} == {
        "reject": [4],
        "hash": [10],
        "zero": [0],
        "mapped": [10],
        "fmix64": [row_of(-1, NUM_POLICY_ROWS) + 1],
        HASHED: [0],
    }


def test_policies_hold_for_many_ids_of_a_row(policies: ServerUnderTest) -> None:
    ids = [0, -1, NUM_POLICY_ROWS, 5]
    sparse = {"reject": [[0, 5]], "hash": [ids], "zero": [ids], "mapped": [[]], "fmix64": [ids], HASHED: [[]]}
    found = policies.client().predict(sparse=sparse)
    assert (found["reject"], found["hash"], found["zero"], found["mapped"]) == (
        7,
        1 + 10 + 1 + 6,
        1 + 6,
        0,
    )
    assert found["fmix64"] == sum(row_of(one, NUM_POLICY_ROWS) + 1 for one in ids)
