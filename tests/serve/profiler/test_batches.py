"""Batches fit the signature, and the rows that they read are those of their IDs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from recsys.artifact.batches.samples import Batch
from recsys.artifact.load import LoadedArtifact
from recsys.inputs.signature import IdPolicy
from serve.bench.load.requests import parse_mix
from serve.profiler.batches import RowReads, Shape, draw, grouped, num_batches
from tests.cases.rows_of_ids import row_of

TABLES = {"user": "plain.users", "genres": "plain.genres", "item": "plain.catalog", "tags": "weighted.tags"}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_batches_are_what_forward_takes(model: LoadedArtifact) -> None:
    drawn = draw(model.manifest, 5, Shape(ids_per_bag=parse_mix("0-3")), rng(), 3)
    assert len(drawn) == 3
    for each in drawn:
        assert model.forward(*each.inputs)["score"].shape == (5,)
    assert not torch.equal(drawn[0].inputs[-1], drawn[1].inputs[-1])
    again = draw(model.manifest, 5, Shape(ids_per_bag=parse_mix("0-3")), rng(), 3)
    assert all(
        torch.equal(a, b)
        for x, y in zip(drawn, again, strict=True)
        for a, b in zip(x.inputs, y.inputs, strict=True)
    )


def test_each_batch_has_the_reads_of_its_own_ids(model: LoadedArtifact) -> None:
    drawn = draw(model.manifest, 5, Shape(ids_per_bag=parse_mix("0-3")), rng(), 3)
    blocks = {block.table: block for block in model.manifest.layout.blocks}
    for each in drawn:
        *_, lengths, ids, weights = each.inputs
        assert all(tensor.is_contiguous() for tensor in each.inputs)
        assert len(weights) == len(ids)
        bags = lengths.view(4, 5).sum(dim=1).tolist()
        expected = [
            blocks[TABLES[use.name]].offset_bytes + int(row) * blocks[TABLES[use.name]].row_bytes
            for use, rows in zip(model.signature.sparse, ids.split(bags), strict=True)
            for row in rows
        ]
        assert each.reads.offsets.tolist() == expected


def test_there_may_be_no_ids_and_no_sparse_inputs(model: LoadedArtifact) -> None:
    dense_only = replace(model.signature, sparse=())
    for signature in (model.signature, dense_only):
        manifest = replace(model.manifest, signature=signature)
        drawn = draw(manifest, 2, Shape(ids_per_bag=parse_mix("0")), rng(), 3)
        assert [each.reads.num_rows for each in drawn] == [0, 0, 0]
        assert [len(each.inputs[len(signature.dense)]) for each in drawn] == [2 * len(signature.sparse)] * 3


def test_reads_are_the_rows_of_the_ids(model: LoadedArtifact) -> None:
    layout = model.manifest.layout
    blocks = {block.table: block for block in layout.blocks}
    [drawn] = draw(model.manifest, 6, Shape(), rng(), 1)
    ids = drawn.inputs[-2].view(4, 6)
    expected = [
        (blocks[TABLES[feature.name]], int(row))
        for feature, rows in zip(model.signature.sparse, ids, strict=True)
        for row in rows
    ]
    assert drawn.reads.offsets.tolist() == [b.offset_bytes + row * b.row_bytes for b, row in expected]
    assert drawn.reads.sizes.tolist() == [b.row_bytes for b, _ in expected]
    assert drawn.reads.num_rows == 24
    assert drawn.reads.num_bytes == sum(b.row_bytes for b, _ in expected)


def test_a_hashed_id_reads_the_row_that_it_hashes_to(model: LoadedArtifact) -> None:
    samples = Batch(
        dense=(torch.zeros(1, 3), torch.zeros(1, 1)),
        lengths=torch.tensor([1, 0, 1, 0]),
        values=torch.tensor([3, 25]),
        weights=torch.ones(2),
        num_rows=1,
    )
    [drawn] = draw(model.manifest, 2, Shape(samples=samples), rng(), 1)
    assert drawn.inputs[-2].tolist() == [3, 3, 25, 25]
    block = next(block for block in model.manifest.layout.blocks if block.table == "plain.catalog")
    assert drawn.reads.offsets[2:].tolist() == [block.offset_bytes + 3 * block.row_bytes] * 2


def test_a_mixed_id_reads_the_row_that_the_model_reads(model: LoadedArtifact) -> None:
    signature = model.manifest.signature
    item = next(use for use in signature.sparse if use.tables[0].name == "plain.catalog")
    mixed = replace(item, tables=(replace(item.tables[0], id_policy=IdPolicy.FMIX64),))
    sparse = tuple(mixed if use is item else use for use in signature.sparse)
    manifest = replace(model.manifest, signature=replace(signature, sparse=sparse))
    samples = Batch(
        dense=(torch.zeros(1, 3), torch.zeros(1, 1)),
        lengths=torch.tensor([int(use is item) for use in signature.sparse]),
        values=torch.tensor([-(2**40)]),
        weights=torch.ones(1),
        num_rows=1,
    )
    [drawn] = draw(manifest, 1, Shape(samples=samples), rng(), 1)
    block = next(block for block in manifest.layout.blocks if block.table == "plain.catalog")
    assert drawn.reads.offsets.tolist() == [block.offset_bytes + row_of(-(2**40), 11) * block.row_bytes]


def test_zipf_draws_few_rows_often(model: LoadedArtifact) -> None:
    [uniform] = draw(model.manifest, 2000, Shape(), rng(), 1)
    [skewed] = draw(model.manifest, 2000, Shape(zipf=2.0), rng(), 1)
    most = [np.bincount(each.inputs[-2][:2000].numpy()).max() for each in (uniform, skewed)]
    assert most[1] > 10 * most[0]


@pytest.mark.parametrize(("num_rows", "expected"), [(1, 4096), (32, 512), (512, 32), (4096, 16)])
def test_small_batches_are_many(num_rows: int, expected: int) -> None:
    assert num_batches(num_rows) == expected


def test_groups_hold_the_same_reads() -> None:
    def reads(*offsets: int) -> RowReads:
        return RowReads(offsets=np.array(offsets, np.int64), sizes=np.full(len(offsets), 4))

    groups = grouped([reads(1, 2), reads(3), reads(4, 5, 6), reads(7)], 3)
    assert [group.offsets.tolist() for group in groups] == [[1, 2, 3], [4, 5, 6], [7]]
