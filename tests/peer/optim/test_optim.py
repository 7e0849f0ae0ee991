"""Optimizers beside TorchRec's: the same names in state dicts, the same steps, each other's state dicts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata, TensorProperties
from torch.optim import SGD, Adagrad, Adam, Optimizer

import recsys.optim
from recsys.optim import FusedConfig, FusedOptimizer
from tests.peer.torchrec_peer import torchrec
from tests.recsys.optim.lookups import TbeLookup, batches

pytestmark = pytest.mark.peer
PEER: Any = torchrec.optim.keyed
LIBRARIES: dict[str, Any] = {"ours": recsys.optim, "torchrec": PEER}

Factory = Callable[[list[Tensor]], Optimizer]
FACTORIES: dict[str, Factory] = {
    "sgd": lambda params: SGD(params, lr=0.1),
    "sgd momentum": lambda params: SGD(params, lr=0.1, momentum=0.9),
    "adagrad": lambda params: Adagrad(params, lr=0.1),
    "adam": lambda params: Adam(params, lr=0.1),
    "two groups": lambda params: Adam([{"params": params[:1], "lr": 0.2}, {"params": params[1:]}], lr=0.1),
}


def _model() -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(3, 2)


def _trained(library: Any, factory: Factory, name: str = "dense") -> tuple[nn.Linear, Any]:
    model = _model()
    wrapper = library.KeyedOptimizerWrapper(dict(model.named_parameters(prefix="over")), factory)
    optimizer = library.CombinedOptimizer([(name, wrapper)])
    optimizer.save_param_groups(True)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 3, generator=generator)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def _assert_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert list(ours) == list(theirs)
    assert {name: list(state) for name, state in ours["state"].items()} == {
        name: list(state) for name, state in theirs["state"].items()
    }
    torch.testing.assert_close(ours["state"], dict(theirs["state"]), rtol=0, atol=0)
    assert ours["param_groups"] == theirs["param_groups"]


@pytest.mark.parametrize("prefix", ["dense", ""], ids=["named", "unnamed"])
@pytest.mark.parametrize("name", FACTORIES)
def test_state_dicts(name: str, prefix: str) -> None:
    model, ours = _trained(recsys.optim, FACTORIES[name], prefix)
    peer, theirs = _trained(PEER, FACTORIES[name], prefix)
    assert torch.equal(model.weight, peer.weight)
    _assert_same(ours.state_dict(), theirs.state_dict())
    assert list(ours.params) == list(theirs.params)
    assert len(ours.state) == len(theirs.state)


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("reader", LIBRARIES)
def test_each_reads_the_others_state(name: str, reader: str) -> None:
    writer = next(library for library in LIBRARIES if library != reader)
    saved = copy.deepcopy(_trained(LIBRARIES[writer], FACTORIES[name])[1].state_dict())
    optimizer = LIBRARIES[reader].CombinedOptimizer(
        [
            (
                "dense",
                LIBRARIES[reader].KeyedOptimizerWrapper(
                    dict(_model().named_parameters(prefix="over")), FACTORIES[name]
                ),
            )
        ]
    )
    optimizer.save_param_groups(True)
    optimizer.init_state()
    optimizer.load_state_dict(saved)
    _assert_same(optimizer.state_dict(), saved)


def _schedule(library: Any) -> list[Any]:
    """A stage of each policy."""
    policy, stage = library.WarmupPolicy, library.WarmupStage
    return [
        stage(policy.LINEAR, 3, 0.1),
        stage(policy.POLY, 6, 2.0),
        stage(policy.STEP, 8, 0.5),
        stage(policy.INVSQRT, 9),
        stage(policy.COSINE_ANNEALING_WARM_RESTARTS, 12, 0.2, sgdr_period=2),
        stage(policy.CONSTANT, 13, 0.3, lr_scale=2.0),
        stage(policy.INTERPOLATE, 16, 0.5, start_interpolating_iters=13, end_value=0.9),
    ]


def _steps(optimizer: Any, model: nn.Linear, steps: range) -> list[float]:
    """Train; return the rate after each step."""
    rates = []
    for step in steps:
        optimizer.zero_grad()
        batch = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        model(batch).square().sum().backward()
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


def _wrapped(library: Any, model: nn.Linear) -> Any:
    return library.KeyedOptimizerWrapper(
        dict(model.named_parameters()), lambda params: Adagrad(params, lr=0.1)
    )


def test_warm_up_goes_through_its_stages_alike_and_goes_on() -> None:
    found = []
    for library in (recsys.optim, torchrec.optim):
        model = _model()
        optimizer = library.WarmupOptimizer(_wrapped(library, model), _schedule(library), lr=0.2)
        found.append((_steps(optimizer, model, range(19)), model.weight.detach(), optimizer.state_dict()))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])
    torch.testing.assert_close(found[0][2]["state"], dict(found[1][2]["state"]), rtol=0, atol=0)

    model = _model()
    first = recsys.optim.WarmupOptimizer(_wrapped(recsys.optim, model), _schedule(recsys.optim), lr=0.2)
    _steps(first, model, range(7))
    combined = recsys.optim.CombinedOptimizer(
        [recsys.optim.WarmupOptimizer(_wrapped(recsys.optim, model), _schedule(recsys.optim), lr=0.2)]
    )
    combined.init_state()
    combined.load_state_dict(copy.deepcopy(first.state_dict()))
    assert _steps(combined, model, range(7, 19)) == found[0][0][7:]
    assert torch.equal(model.weight, found[0][1])


@pytest.mark.parametrize("kind", ["NORM", "VALUE", "NONE"])
@pytest.mark.parametrize("norm_type", [2.0, "inf"])
def test_gradients_are_clipped_alike(kind: str, norm_type: float | str) -> None:
    weights, norms = [], []
    for library in (recsys.optim, torchrec.optim):
        model = _model()
        optimizer = library.GradientClippingOptimizer(
            _wrapped(library, model), library.GradientClipping[kind], 0.05, norm_type, track_grad_norm=True
        )
        _steps(optimizer, model, range(3))
        weights.append(model.weight.detach())
        norms.append(optimizer.last_total_grad_norm)
    assert torch.equal(*weights)
    torch.testing.assert_close(*norms)


def test_rowwise_adagrad_steps_alike() -> None:
    weights = [nn.Parameter(torch.arange(24.0).view(6, 4)) for _ in range(2)]
    optimizers = [
        recsys.optim.RowWiseAdagrad([weights[0]], lr=0.1, eps=1e-3),
        torchrec.optim.RowWiseAdagrad([weights[1]], lr=0.1, eps=1e-3),
    ]
    for batch in batches(5, num_columns=4, max_id=6):
        for weight, optimizer in zip(weights, optimizers, strict=True):
            weight.grad = batch.dense_gradient(6)
            optimizer.step()
    torch.testing.assert_close(weights[0], weights[1])


@pytest.mark.parametrize("ours_first", [True, False], ids=["ours into theirs", "theirs into ours"])
@pytest.mark.parametrize("lr_decay", [0.0, 0.5])
def test_rowwise_adagrad_goes_on_where_the_other_stopped(ours_first: bool, lr_decay: float) -> None:
    kinds = (recsys.optim.RowWiseAdagrad, torchrec.optim.RowWiseAdagrad)
    weights = [nn.Parameter(torch.arange(24.0).view(6, 4)) for _ in range(2)]
    first, second = (
        kind([weight], lr=0.1, lr_decay=lr_decay)
        for kind, weight in zip(kinds if ours_first else kinds[::-1], weights, strict=True)
    )
    for number, batch in enumerate(batches(5, num_columns=4, max_id=6)):
        for weight, optimizer in zip(weights, (first, second), strict=True):
            if number > 2 or optimizer is first:
                weight.grad = batch.dense_gradient(6)
                optimizer.step()
        if number == 2:
            weights[1].data.copy_(weights[0].data)
            second.load_state_dict(copy.deepcopy(first.state_dict()))
    torch.testing.assert_close(weights[0], weights[1])


@pytest.fixture
def alone() -> Iterator[None]:
    """Rank 0 of 1, over gloo."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_fused_state_has_torchrecs_names() -> None:
    from torchrec.distributed.batched_embedding_kernel import BatchedFusedEmbeddingBag
    from torchrec.distributed.embedding_types import EmbeddingComputeKernel, GroupedEmbeddingConfig
    from torchrec.distributed.embedding_types import ShardedEmbeddingTable as Table

    params = {"optimizer": recsys.optim.EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.02}
    place = ShardMetadata([0, 0], [12, 8], "rank:0/cpu")
    made = GroupedEmbeddingConfig(
        data_type=torchrec.modules.embedding_configs.DataType.FP32,
        pooling=torchrec.modules.embedding_configs.PoolingType.SUM,
        is_weighted=False,
        has_feature_processor=False,
        compute_kernel=EmbeddingComputeKernel.FUSED,
        embedding_tables=[
            Table(
                num_embeddings=12,
                embedding_dim=8,
                local_rows=12,
                local_cols=8,
                name="t1",
                embedding_names=["f"],
                feature_names=["f"],
                compute_kernel=EmbeddingComputeKernel.FUSED,
                local_metadata=place,
                global_metadata=ShardedTensorMetadata([place], torch.Size([12, 8]), TensorProperties()),
            )
        ],
        fused_params=dict(params),  # it adds to them
    )
    theirs = BatchedFusedEmbeddingBag(made, dist.group.WORLD, torch.device("cpu")).fused_optimizer
    config = FusedConfig.from_params(params)
    ours = FusedOptimizer([TbeLookup(config)])
    their_state = next(iter(theirs.state_dict()["state"].values()))
    our_state = next(iter(ours.state_dict()["state"].values()))
    assert list(our_state) == list(their_state) == ["t1.momentum1"]
    assert ours.param_groups[0]["lr"] == 0.02
    assert theirs.param_groups[0]["lr"] == pytest.approx(0.02)  # read back from float32
