"""FBGEMM's operators on jagged rows in graphs: whatever lengths say, they read what they are given and no more.

Shape letters: B batch, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from export.graph.jagged_operators import _JAGGED, bound_bags
from recsys.errors import ExportError
from recsys.ops import fbgemm
from recsys.scripting import torchscript

# What the values hold, and sums of products of them, is small: anything else comes of other memory.
JUNK = 12345.0
LARGEST = 64.0
NUM_BAGS, NUM_ROWS, MOST = 2, 6, 4
GOOD = [2, 4]
BAD = ([2, 5], [6, 400], [400, 2], [7, -3], [-3, 7], [-400, 406], [0, 2**40], [-(2**40), 3])


def offsets_of(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, lengths[0], lengths[0] + lengths[1]])


ROWS, IDS, DENSE = torch.ones(NUM_ROWS, 2), torch.ones(NUM_ROWS, dtype=torch.int64), torch.ones(2, MOST, 2)
ORDER = torch.tensor([1, 0], dtype=torch.int32)

Call = Callable[[Tensor, Tensor], Any]
BY_OFFSETS: dict[str, Call] = {
    "jagged_to_padded_dense": lambda o, v: fbgemm.jagged_to_padded_dense(v, [o], [MOST], 0.0),
    "jagged_to_padded_dense_forward": lambda o, v: fbgemm.jagged_to_padded_dense_forward(v, [o], [MOST], 0.0),
    "jagged_1d_to_dense": lambda o, v: fbgemm.jagged_1d_to_dense(v[:, 0].contiguous(), o, MOST, 0),
    "jagged_2d_to_dense": lambda o, v: fbgemm.jagged_2d_to_dense(v, o, MOST),
    "jagged_dense_elementwise_add": lambda o, v: fbgemm.jagged_dense_elementwise_add(v, [o], DENSE),
    "jagged_dense_elementwise_mul": lambda o, v: fbgemm.jagged_dense_elementwise_mul(v, [o], DENSE)[0],
    "jagged_dense_elementwise_mul_forward": lambda o, v: fbgemm.jagged_dense_elementwise_mul_forward(
        v, [o], DENSE
    ),
    "jagged_dense_elementwise_add_jagged_output": (
        lambda o, v: fbgemm.jagged_dense_elementwise_add_jagged_output(v, [o], DENSE)[0]
    ),
    "jagged_dense_dense_elementwise_add_jagged_output": (
        lambda o, v: fbgemm.jagged_dense_dense_elementwise_add_jagged_output(v, [o], DENSE, DENSE)[0]
    ),
    "jagged_dense_dense_elementwise_add_jagged_output_forward": (
        lambda o, v: fbgemm.jagged_dense_dense_elementwise_add_jagged_output_forward(v, [o], DENSE, DENSE)
    ),
    "jagged_dense_bmm": lambda o, v: fbgemm.jagged_dense_bmm(v, o, torch.ones(2, 2, 3), MOST)[0],
    "jagged_dense_bmm_forward": lambda o, v: fbgemm.jagged_dense_bmm_forward(v, o, torch.ones(2, 2, 3), MOST),
    "jagged_jagged_bmm": lambda o, v: fbgemm.jagged_jagged_bmm(v, v, o, MOST),
    "jagged_jagged_bmm_forward": lambda o, v: fbgemm.jagged_jagged_bmm_forward(v, v, o, MOST),
    "batched_dense_vec_jagged_2d_mul": lambda o, v: fbgemm.batched_dense_vec_jagged_2d_mul(
        torch.ones(2, MOST), v, o
    ),
    "batched_dense_vec_jagged_2d_mul_forward": (
        lambda o, v: fbgemm.batched_dense_vec_jagged_2d_mul_forward(torch.ones(2, MOST), v, o)
    ),
    "segment_sum_csr": lambda o, v: fbgemm.segment_sum_csr(1, o, v[:, 0].contiguous()),
    "offsets_range": lambda o, v: fbgemm.offsets_range(o, v.size(0)),
}
BY_LENGTHS: dict[str, Call] = {
    "jagged_1d_to_truncated_values": (
        lambda n, v: fbgemm.jagged_1d_to_truncated_values(v[:, 0].contiguous(), n, 3)
    ),
    "masked_select_jagged_1d": lambda n, v: fbgemm.masked_select_jagged_1d(v[:, 0].long(), n, v[:, 0] > 0)[1],
    "jagged_index_select": lambda n, v: fbgemm.jagged_index_select(v, n, ORDER.long())[0],
    "jagged_slice": lambda n, v: fbgemm.jagged_slice(v[:, 0].contiguous(), n, torch.zeros_like(n), 3)[0],
    "permute_1D_sparse_data": lambda n, v: fbgemm.permute_1D_sparse_data(ORDER, n, v[:, 0].long())[1],
    "permute_2D_sparse_data": lambda n, v: fbgemm.permute_2D_sparse_data(ORDER, n.view(2, 1), v[:, 0].long())[
        1
    ],
    "permute_sparse_data": lambda n, v: fbgemm.permute_sparse_data(ORDER, n.view(2, 1), v[:, 0].long())[1],
    "permute_sparse_features": lambda n, v: fbgemm.permute_sparse_features(
        ORDER, n.view(2, 1), v[:, 0].long()
    )[1],
    "permute_sequence_embeddings": lambda n, v: fbgemm.permute_sequence_embeddings(ORDER, n.view(2, 1), v)[1],
    "bucketize_sparse_features": lambda n, v: fbgemm.bucketize_sparse_features(n, v[:, 0].long(), False, 2)[
        1
    ],
    "block_bucketize_sparse_features": lambda n, v: fbgemm.block_bucketize_sparse_features(
        n, v[:, 0].long(), False, False, torch.tensor([2, 2]), 2
    )[1],
    "block_bucketize_sparse_features_inference": lambda n, v: (
        fbgemm.block_bucketize_sparse_features_inference(
            n, v[:, 0].long(), False, False, torch.tensor([2, 2]), 2
        )[1]
    ),
}


class Calling(nn.Module):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, bags: Tensor, rows: Tensor) -> Any:
        return self.call(bags, rows)


def bounded(call: Call) -> torch.jit.ScriptModule:
    module = Calling(call)
    traced = fx.symbolic_trace(module)
    for node in traced.graph.nodes:
        node.type = None  # names of types that TorchScript does not know
    bound_bags(traced, module)
    traced.recompile()
    return torchscript.script(traced.eval())


def leave_junk() -> None:
    """Let freed memory hold numbers that no answer may show."""
    junk = [torch.full((size,), JUNK) for size in (2, 4, 8, 12, 16, 24, 64, 400, 1000) for _ in range(50)]
    del junk


def test_every_operator_is_tried() -> None:
    assert {*BY_OFFSETS, *BY_LENGTHS} == {*_JAGGED}


@pytest.mark.parametrize("name", [*BY_OFFSETS, *BY_LENGTHS])
def test_good_bags_stay_as_they_are(name: str) -> None:
    call = BY_OFFSETS.get(name) or BY_LENGTHS[name]
    bags = offsets_of(GOOD) if name in BY_OFFSETS else torch.tensor(GOOD)
    rows = torch.arange(2.0 * NUM_ROWS).view(NUM_ROWS, 2) / 8
    assert torch.equal(bounded(call)(bags, rows), call(bags, rows))


@pytest.mark.parametrize("name", [*BY_OFFSETS, *BY_LENGTHS])
def test_bad_bags_show_no_other_memory(name: str) -> None:
    graph = bounded(BY_OFFSETS.get(name) or BY_LENGTHS[name])
    for lengths in 3 * BAD:
        bags = offsets_of(lengths) if name in BY_OFFSETS else torch.tensor(lengths)
        leave_junk()
        try:
            found = graph(bags, ROWS)
        except RuntimeError:
            continue  # a refusal
        assert found.numel() <= 2 * 400, lengths
        assert bool((found.abs() <= LARGEST).all()), (lengths, found)


def test_offsets_of_two_dimensions_are_bounded() -> None:
    def call(outer: Tensor, rows: Tensor) -> Tensor:
        found: Tensor = fbgemm.jagged_to_padded_dense(
            rows, [outer, torch.tensor([0, 2, 4, 900])], [3, 3], 0.0
        )
        return found

    leave_junk()
    found = bounded(call)(torch.tensor([0, 2, 70]), ROWS)
    assert bool((found <= 1).all())


def test_operators_that_trust_numbers_are_refused() -> None:
    with pytest.raises(ExportError, match=r"calls torch.ops.fbgemm.invert_permute, which trusts the numbers"):
        bounded(lambda bags, _: fbgemm.invert_permute(bags))
