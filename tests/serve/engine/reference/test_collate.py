"""The collation against plain Python loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.inputs.signature import DenseInput, Output, Signature, SparseInput, TableUse
from serve.config.models import BatchLimits
from serve.engine.reference.executor import check_outputs, collate
from serve.engine.reference.request_check import RequestChecker
from tests.support.serve.messages.cases import Sample, forward_inputs, random_sample
from tests.support.serve.models import SIGNATURE

UNWEIGHTED = Signature(dense=SIGNATURE.dense, sparse=SIGNATURE.sparse[:3], outputs=SIGNATURE.outputs)
DENSE_ONLY = Signature(dense=SIGNATURE.dense, sparse=(), outputs=SIGNATURE.outputs)
SPARSE_ONLY = Signature(dense=(), sparse=SIGNATURE.sparse[:1], outputs=SIGNATURE.outputs)
SIGNATURES = [SIGNATURE, UNWEIGHTED, DENSE_ONLY, SPARSE_ONLY]
SIGNATURE_IDS = ["weighted", "unweighted", "dense-only", "sparse-only"]


def joined(samples: list[Sample]) -> Sample:
    """One sample with the rows of all, one after the other."""
    first = samples[0]
    return Sample(
        sum(s.num_rows for s in samples),
        {name: [row for s in samples for row in s.dense[name]] for name in first.dense},
        {name: [bag for s in samples for bag in s.sparse[name]] for name in first.sparse},
        {name: [bag for s in samples for bag in s.weights[name]] for name in first.weights},
    )


@pytest.mark.parametrize("signature", SIGNATURES, ids=SIGNATURE_IDS)
@settings(max_examples=60, deadline=None)
@given(num_rows=st.lists(st.integers(0, 4), min_size=1, max_size=6), seed=st.integers(0, 1 << 30))
def test_collation_is_what_loops_over_features_and_requests_say(
    signature: Signature, num_rows: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    samples = [random_sample(signature, rows, rng) for rows in num_rows]
    checker = RequestChecker(signature, BatchLimits())
    got = collate([checker.check(sample.request()) for sample in samples])
    expected = forward_inputs(signature, joined(samples))
    assert len(got) == len(expected)
    for ours, wanted in zip(got, expected, strict=True):
        assert ours.dtype == wanted.dtype
        assert ours.is_contiguous()
        torch.testing.assert_close(ours, wanted, rtol=0, atol=0)


def test_a_large_batch_of_many_features() -> None:
    """The ops spread larger inputs differently; the loops must still agree."""
    signature = Signature(
        dense=(),
        sparse=tuple(
            SparseInput(
                name=f"f{i}",
                tables=(TableUse(name=f"t{i}", num_embeddings=1 << 50),),
                pooling="sum",
                weighted=i % 3 == 0,
            )
            for i in range(26)
        ),
        outputs=SIGNATURE.outputs,
    )
    rng = np.random.default_rng(1)
    samples = [random_sample(signature, int(rows), rng) for rows in rng.integers(1, 9, 64)]
    checker = RequestChecker(signature, BatchLimits())
    got = collate([checker.check(sample.request()) for sample in samples])
    for ours, wanted in zip(got, forward_inputs(signature, joined(samples)), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=0, atol=0)


OUTPUTS = Signature(
    dense=(DenseInput(name="d", width=1),),
    sparse=(),
    outputs=(Output(name="score", shape=()), Output(name="pair", shape=(2,))),
)


def test_outputs_become_bytes_in_the_signatures_order() -> None:
    pair = torch.arange(6.0).reshape(2, 3).t()
    score, flat = check_outputs({"pair": pair, "score": torch.ones(3)}, OUTPUTS, 3)
    assert np.frombuffer(score, "<f4").tolist() == [1, 1, 1]
    assert np.frombuffer(flat, "<f4").tolist() == [0, 3, 1, 4, 2, 5]


def test_integers_become_int64() -> None:
    signature = replace(OUTPUTS, outputs=(Output(name="ids", shape=(2,), dtype="int64"),))
    (ids,) = check_outputs({"ids": torch.tensor([[2**53 + 1, -1]])}, signature, 1)
    assert np.frombuffer(ids, "<i8").tolist() == [2**53 + 1, -1]
    with pytest.raises(RuntimeError, match=r"got torch.float32 \(1, 2\), expected int64 \(1, 2\)"):
        check_outputs({"ids": torch.ones(1, 2)}, signature, 1)


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        pytest.param({"pair": torch.ones(3, 2)}, "'score': got nothing", id="missing"),
        pytest.param({"score": torch.ones(3).double(), "pair": torch.ones(3, 2)}, "float64", id="dtype"),
        pytest.param(
            {"score": torch.ones(2), "pair": torch.ones(3, 2)}, r"\(2,\), expected float32 \(3,\)", id="rows"
        ),
        pytest.param(
            {"score": torch.ones(3), "pair": torch.ones(3, 3)}, r"'pair': got .*\(3, 3\)", id="shape"
        ),
    ],
)
def test_outputs_that_contradict_the_signature_are_an_error(
    outputs: dict[str, torch.Tensor], text: str
) -> None:
    with pytest.raises(RuntimeError, match=text):
        check_outputs(outputs, OUTPUTS, 3)
