"""Ranking requests in the checker and the collation, against plain loops over the expanded request.

Shape letters: B rows of a request, F sparse inputs, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.inputs.signature import Signature
from serve.client.packing import Context, build_request
from serve.config.models import BatchLimits
from serve.engine.reference.executor import collate
from serve.engine.reference.request_check import RequestChecker
from serve.engine.reference.sparse_arrays import SparseArrays
from serve.errors import RequestError, RequestTooLargeError
from serve.wire import predict_pb2 as wire
from tests.support.serve.messages.cases import Sample, forward_inputs, random_sample
from tests.support.serve.models import SIGNATURE

# One dense and two sparse inputs of the user's, one of them weighted.
RANKING = replace(SIGNATURE, context=("context", "user", "tags"))
NAMES = [d.name for d in SIGNATURE.dense] + [s.name for s in SIGNATURE.sparse]


def split(sample: Sample, one: Sample, shared: set[str]) -> tuple[wire.PredictRequest, Sample]:
    """A request that takes the shared inputs from ``one`` (a sample of one row), and the sample that it stands for."""

    def parts(source: Sample, wanted: Callable[[str], bool]) -> tuple[dict, dict, dict]:
        return tuple(
            {name: rows for name, rows in part.items() if wanted(name)}
            for part in (source.dense, source.sparse, source.weights)
        )

    dense, sparse, weights = parts(sample, lambda name: name not in shared)
    context = Context(
        **dict(zip(("dense", "sparse", "weights"), parts(one, shared.__contains__), strict=True)),
        num_rows=sample.num_rows,
    )
    request = build_request(dense, sparse, weights, context=context)
    expanded = Sample(
        sample.num_rows,
        *(
            {
                name: getattr(one, part)[name] * sample.num_rows if name in shared else rows
                for name, rows in getattr(sample, part).items()
            }
            for part in ("dense", "sparse", "weights")
        ),
    )
    return request, expanded


def plain_of(signature: Signature, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """The ranking graph's inputs as the plain graph's, with loops."""
    context, num_dense = set(signature.context), len(signature.dense)
    dense, (context_lengths, context_values) = inputs[:num_dense], inputs[num_dense : num_dense + 2]
    rest = list(inputs[num_dense + 2 :])
    context_weights = rest.pop(0) if signature.is_weighted else torch.ones(context_values.numel())
    lengths, values = rest.pop(0), rest.pop(0)
    weights = rest.pop(0) if signature.is_weighted else torch.ones(values.numel())
    (row_context,) = rest
    wide = [
        tensor.index_select(0, row_context) if use.name in context else tensor
        for use, tensor in zip(signature.dense, dense, strict=True)
    ]

    def bags(count: int, sizes: torch.Tensor, *flat: torch.Tensor) -> list[list[list[list[float]]]]:
        if count == 0:
            assert sizes.numel() == 0
            return []
        ends = sizes.cumsum(0).tolist()
        cut = [
            [part[end - n : end].tolist() for part in flat]
            for n, end in zip(sizes.tolist(), ends, strict=True)
        ]
        width = len(cut) // count
        return [cut[i * width : (i + 1) * width] for i in range(count)]

    in_context = [use.name in context for use in signature.sparse]
    once = iter(bags(sum(in_context), context_lengths, context_values, context_weights))
    per_row = iter(bags(len(in_context) - sum(in_context), lengths, values, weights))
    out_lengths, out_values, out_weights = [], [], []
    for shared in in_context:
        found = next(once) if shared else next(per_row)
        for ids, factors in (found[i] for i in row_context.tolist()) if shared else found:
            out_lengths.append(len(ids))
            out_values += ids
            out_weights += factors
    plain = [
        *wide,
        torch.tensor(out_lengths, dtype=torch.int64),
        torch.tensor(out_values, dtype=torch.int64),
    ]
    return [*plain, torch.tensor(out_weights, dtype=torch.float32)] if signature.is_weighted else plain


@settings(max_examples=150, deadline=None)
@given(
    num_rows=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    context=st.sets(st.sampled_from(NAMES)),
    shared=st.lists(st.sets(st.sampled_from(NAMES), min_size=1), min_size=5, max_size=5),
    covered=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_a_ranking_request_is_computed_as_the_request_that_it_stands_for(
    num_rows: list[int], context: set[str], shared: list[set[str]], covered: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    signature = replace(SIGNATURE, context=tuple(name for name in NAMES if name in context))
    checker = RequestChecker(signature, BatchLimits())
    ranking, plain = [], []
    for rows, names in zip(num_rows, shared, strict=False):
        parts = names | context if covered else names
        sample, one = random_sample(signature, rows, rng), random_sample(signature, 1, rng)
        request, expanded = split(sample, one, parts)
        checked = checker.check(request)
        in_graph = bool(context) and context <= parts
        assert (checked.context is not None) == in_graph
        (ranking if in_graph else plain).append((checked, expanded))
    for group in (ranking, plain):
        if not group:
            continue
        inputs = collate([checked for checked, _ in group])
        got = plain_of(signature, inputs) if group is ranking else list(inputs)
        samples = [expanded for _, expanded in group]
        whole = Sample(
            sum(s.num_rows for s in samples),
            *(
                {
                    name: [row for s in samples for row in getattr(s, part)[name]]
                    for name in getattr(samples[0], part)
                }
                for part in ("dense", "sparse", "weights")
            ),
        )
        for ours, wanted in zip(got, forward_inputs(signature, whole), strict=True):
            torch.testing.assert_close(ours, wanted, rtol=0, atol=0)


def test_a_context_is_counted_once(rng: np.random.Generator) -> None:
    sample, one = random_sample(RANKING, 100, rng, max_ids=0), random_sample(RANKING, 1, rng, max_ids=0)
    one.sparse["user"][0] = [1, 2, 3, 4, 5]
    request, _ = split(sample, one, {"context", "user", "tags"})
    assert RequestChecker(RANKING, BatchLimits(max_request_ids=5)).check(request).num_ids == 5
    with pytest.raises(RequestTooLargeError, match="sparse: got 500 IDs, expected at most 499"):
        RequestChecker(SIGNATURE, BatchLimits(max_request_ids=499)).check(request)


def test_what_a_context_grows_to_is_bounded_and_counts_in_the_queue(rng: np.random.Generator) -> None:
    sample, one = random_sample(SIGNATURE, 100, rng, max_ids=0), random_sample(SIGNATURE, 1, rng, max_ids=0)
    one.sparse["user"][0] = [1, 2, 3]
    request, _ = split(sample, one, {"context", "user"})
    grown = 100 * (3 * 4 + 3 * 8)  # three floats and three IDs for each row
    assert RequestChecker(SIGNATURE, BatchLimits()).check(request).spread_bytes == grown
    limits = BatchLimits(max_queue_bytes=grown - 1)
    with pytest.raises(RequestTooLargeError, match=f"got {grown} bytes, expected at most {grown - 1}"):
        RequestChecker(SIGNATURE, limits).check(request)
    assert (
        RequestChecker(RANKING, limits).check(split(sample, one, {"context", "user", "tags"})[0]).spread_bytes
        == 0
    )


@pytest.mark.parametrize("signature", [SIGNATURE, RANKING], ids=["spread", "context"])
def test_a_copy_is_the_same_in_memory_of_its_own(signature: Signature, rng: np.random.Generator) -> None:
    request, _ = split(
        random_sample(signature, 4, rng), random_sample(signature, 1, rng), set(RANKING.context)
    )
    checked = RequestChecker(signature, BatchLimits()).check(request)
    copy = checked.copy()
    for field in fields(checked):
        np.testing.assert_equal(_plain(getattr(copy, field.name)), _plain(getattr(checked, field.name)))
    for mine, other in ((copy.sparse, checked.sparse), (copy.context, checked.context)):
        if mine is None or other is None:
            assert mine is other
            continue
        for name in ("lengths", "values", "weights"):
            assert not np.shares_memory(getattr(mine, name), getattr(other, name))


def _plain(part: object) -> object:
    return asdict(part) if isinstance(part, SparseArrays) else part


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def _doubled(request: wire.PredictRequest) -> None:
    request.sparse.add().CopyFrom(request.context_sparse[0])


def _two_rows(request: wire.PredictRequest) -> None:
    request.context_sparse[0].lengths = np.array([1, 0], "<i4").tobytes()


def _bad_id(request: wire.PredictRequest) -> None:
    request.context_sparse[0].lengths = np.array([2], "<i4").tobytes()
    request.context_sparse[0].values = np.array([3, 50], "<i8").tobytes()


def _unknown(request: wire.PredictRequest) -> None:
    request.context_dense.add(name="price2")


def _nan(request: wire.PredictRequest) -> None:
    request.context_dense[0].values = np.array([0, np.nan, 0], "<f4").tobytes()


def _short(request: wire.PredictRequest) -> None:
    request.context_dense[0].values = b""


def _missing(request: wire.PredictRequest) -> None:
    del request.context_sparse[1:]


@pytest.mark.parametrize("signature", [RANKING, SIGNATURE], ids=["in-the-graph", "expanded"])
@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (_doubled, "sparse: got 'user' more than once"),
        (_two_rows, r"context_sparse\['user'\].lengths: got 8 bytes, expected 4 \(int32 \[1\]\)"),
        (_bad_id, r"context_sparse\['user'\].values: got ID 50 in row 0, expected 0 <= ID < 50"),
        (_unknown, "dense: got an unknown input 'price2'"),
        (_nan, r"context_dense\['context'\].values: got nan in row 0, column 1"),
        (_short, r"context_dense\['context'\].values: got 0 bytes, expected 12"),
        (_missing, "sparse: missing 'tags'"),
    ],
)
def test_each_wrong_context_is_refused_by_name(
    signature: Signature, spoil: Callable[[wire.PredictRequest], None], text: str, rng: np.random.Generator
) -> None:
    request, _ = split(
        random_sample(signature, 3, rng), random_sample(signature, 1, rng), {"context", "user", "tags"}
    )
    spoil(request)
    with pytest.raises(RequestError, match=text):
        RequestChecker(signature, BatchLimits()).check(request)
