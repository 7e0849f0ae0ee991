"""Topologies, constraints and tables in files that nobody vouches for."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from recsys import DataType, EmbeddingBagConfig, EmbeddingConfig, PoolingType
from recsys.errors import PlanError
from recsys.planner.cost.constraints import ParameterConstraints, constraints_from_json, read_constraints
from recsys.planner.cost.tables import tables_from_json
from recsys.planner.cost.topology import Topology, default_topology, read_topology
from tests.recsys.planner.sets import topology


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_topology_comes_back_from_its_file(device: str, tmp_path: Path) -> None:
    made = topology(8, 4, device)
    path = tmp_path / "topology.json"
    path.write_text(json.dumps(made.to_json()))
    assert read_topology(path) == made
    assert (made.num_hosts, made.hbm_bytes, made.ddr_bytes) == (2, 10**9 if device == "cuda" else 0, 10**10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"world_size": 0}, "topology.world_size: got '0', expected a whole number of at least 1"),
        ({"local_world_size": 3}, "topology.local_world_size: got 3, expected a divisor of the 8 ranks"),
        ({"compute_device": "tpu"}, "topology.compute_device: got 'tpu', expected one of cuda, cpu"),
        ({"hbm": None}, "topology.hbm: got none on cuda"),
        ({"hbm.bandwidth": 0}, "topology.hbm.bandwidth: got '0', expected a finite number above 0"),
        (
            {"ddr.row_read_ns": -1},
            "topology.ddr.row_read_ns: got '-1', expected a finite number of at least 0",
        ),
        ({"intra_host.bandwidth": float("nan")}, "topology.intra_host.bandwidth: got 'nan'"),
        ({"shard_us": "fast"}, "topology.shard_us: got 'fast'"),
        ({"ddr": []}, "topology.ddr.capacity_bytes: missing"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_a_wrong_topology_is_one_clear_error(change: dict[str, Any], message: str) -> None:
    data = copy.deepcopy(topology(8, 4).to_json())
    for path, value in change.items():
        *parents, last = path.split(".")
        at = data
        for parent in parents:
            at = at[parent]
        at[last] = value
    with pytest.raises(PlanError) as caught:
        Topology.from_json(data)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot read"), ("{", "not readable as JSON"), ("[]", "missing")]
)
def test_files_that_are_no_topology(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "topology.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(PlanError, match=message):
        read_topology(path)


@pytest.mark.parametrize(("world_size", "local"), [(1, 1), (4, 4), (8, 8), (16, 8), (12, 4), (7, 7), (9, 1)])
def test_hosts_are_of_the_usual_size_by_default(world_size: int, local: int) -> None:
    assert default_topology("cuda", world_size=world_size).local_world_size == local


def test_constraints_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "constraints.json"
    path.write_text(
        json.dumps(
            {
                "user": {"sharding_types": ["row_wise"], "pooling_factors": [2.5, 1], "is_weighted": True},
                "item": {"compute_kernels": ["fused_uvm"], "min_partition": 16, "cache_load_factor": 0.5},
                "ad": {"batch_sizes": [7], "num_poolings": [3], "cache_hit_rate": 0.25},
            }
        )
    )
    assert read_constraints(path) == {
        "user": ParameterConstraints(
            sharding_types=("row_wise",), pooling_factors=(2.5, 1.0), is_weighted=True
        ),
        "item": ParameterConstraints(compute_kernels=("fused_uvm",), min_partition=16, cache_load_factor=0.5),
        "ad": ParameterConstraints(batch_sizes=(7,), num_poolings=(3.0,), cache_hit_rate=0.25),
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "constraints: got list, expected an object"),
        ({"t": 1}, "constraints['t']: got int, expected an object"),
        ({"t": {"sharding": []}}, "constraints['t']: got unknown fields ['sharding']"),
        (
            {"t": {"sharding_types": ["rows"]}},
            "constraints['t'].sharding_types: got ['rows'], expected some of",
        ),
        ({"t": {"sharding_types": []}}, "constraints['t'].sharding_types: got []"),
        (
            {"t": {"compute_kernels": "fused"}},
            "constraints['t'].compute_kernels: got 'fused', expected a list",
        ),
        ({"t": {"pooling_factors": [-1]}}, "constraints['t'].pooling_factors[0]: got '-1'"),
        ({"t": {"min_partition": 0}}, "constraints['t'].min_partition: got '0'"),
        ({"t": {"is_weighted": 1}}, "constraints['t'].is_weighted: got '1', expected true or false"),
        ({"t": {"cache_load_factor": 2}}, "constraints['t'].cache_load_factor: got 2.0"),
        ({"t": {"cache_hit_rate": 1.5}}, "constraints['t'].cache_hit_rate: got 1.5"),
    ],
    ids=lambda v: str(v)[:40] if not isinstance(v, str) else "",
)
def test_wrong_constraints_are_named(data: Any, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        constraints_from_json(data)
    assert message in str(caught.value)


def test_tables_come_from_plain_data() -> None:
    data = [
        {"name": "a", "num_embeddings": 10, "embedding_dim": 8},
        {
            "name": "b",
            "num_embeddings": 20,
            "embedding_dim": 16,
            "feature_names": ["x", "y"],
            "pooling": "MEAN",
        },
        {
            "name": "c",
            "num_embeddings": 5,
            "embedding_dim": 4,
            "pooling": "NONE",
            "collection": "rows",
            "data_type": "FP16",
        },
    ]
    tables = tables_from_json(data)
    first, second = tables[""]
    (third,) = tables["rows"]
    assert isinstance(second, EmbeddingBagConfig)
    assert (first.name, first.feature_names, first.data_type) == ("a", ["a"], DataType.FP32)
    assert (second.num_embeddings, second.feature_names, second.pooling) == (20, ["x", "y"], PoolingType.MEAN)
    assert isinstance(third, EmbeddingConfig)
    assert third.data_type is DataType.FP16
    assert {t.data_type for group in tables_from_json(data, DataType.INT8).values() for t in group} == {
        DataType.INT8
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "tables: got '{}', expected a list"),
        ([], "tables: got none"),
        ([3], "tables[0].name: missing"),
        ([{"name": "a", "num_embeddings": 0, "embedding_dim": 4}], "tables[0].num_embeddings: got '0'"),
        (
            [{"name": "a", "num_embeddings": 1, "embedding_dim": 4, "pooling": "MAX"}],
            "tables[0].pooling: got 'MAX'",
        ),
        (
            [{"name": "a", "num_embeddings": 1, "embedding_dim": 4, "collection": 1}],
            "tables[0].collection: got '1'",
        ),
        ([{"name": "a.b", "num_embeddings": 1, "embedding_dim": 4}], "name without a dot"),
        ([{"name": "a", "num_embeddings": 1, "embedding_dim": 4}] * 2, "more than once"),
    ],
    ids=["object", "none", "number", "rows", "pooling", "collection", "dot", "twice"],
)
def test_wrong_tables_are_named(data: Any, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        tables_from_json(data)
    assert message in str(caught.value)
