"""The other models: formulas held against plain numpy, and each one exported and served as the float model says."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import KeyedJaggedTensor
from recsys.artifact.load import load_artifact
from recsys.checkpoint.single_file import Checkpoint, build_model
from recsys.configs import DataType
from recsys.errors import CheckpointError
from recsys.inputs.schema import DenseColumn, LabelColumn, Schema, TableSpec
from recsys.models.click import ClickModel
from recsys.models.factorization import FactorizedNetwork, pairwise_sum
from recsys.modules.mlp import MLP
from recsys.train.config import ModelConfig
from recsys.train.stepping.tasks import LogitsOf, trained_form
from tests.export.lower.test_lowering import kinds_of, lowered

_DIM = 4


def _schema(labels: int, *, dense: bool) -> Schema:
    return Schema(
        labels=tuple(LabelColumn(name=f"label_{i}") for i in range(labels)),
        dense=(DenseColumn(name="price", missing=1.0, buckets=(0.5,)), DenseColumn(name="age"))
        if dense
        else (),
        tables=tuple(TableSpec(name=n, num_embeddings=9, feature_names=(n,), ids="hash") for n in "abc"),
    )


def _built(config: ModelConfig, labels: int = 1, *, dense: bool = True) -> ClickModel:
    schema = _schema(labels, dense=dense)
    arguments: dict[str, Any] = {
        "tables": [config._table(table) for table in schema.tables],
        "dense_in_features": len(schema.dense),
        **config._sizes(labels),
        "inputs": schema.to_json(),
    }
    torch.manual_seed(0)
    module, _, factory = config.factory.partition(":")
    state = getattr(import_module(module), factory)(**arguments).state_dict()
    plain = json.loads(json.dumps(arguments))
    model = build_model(Checkpoint(factory=config.factory, arguments=plain, state_dict=state))
    assert isinstance(model, ClickModel)
    return model.eval()


def _config(model: str, **sizes: Any) -> ModelConfig:
    return ModelConfig(model=model, embedding_dim=_DIM, over_layers=(8, 6), **sizes)


_MODELS = [
    pytest.param(_config("dcn"), 2, id="dcn"),
    pytest.param(_config("dcn", cross_rank=2), 1, id="low-rank"),
    pytest.param(_config("deepfm"), 2, id="deepfm"),
    pytest.param(_config("mmoe", experts=3, tower_layers=(5,)), 3, id="mmoe"),
    pytest.param(_config("twotower", item_features=("b",)), 1, id="twotower"),
    pytest.param(_config("ple", experts=2, tower_layers=(5,)), 2, id="ple"),
    pytest.param(_config("masknet", mask_blocks=2), 2, id="masknet"),
    pytest.param(_config("finalmlp"), 2, id="finalmlp"),
    pytest.param(_config("finalmlp", item_features=("b",), fusion_heads=3), 1, id="finalmlp-gates"),
    pytest.param(_config("wukong", interaction_vectors=3, interaction_rank=2), 2, id="wukong"),
]


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "no-dense"])
@pytest.mark.parametrize(("config", "labels"), _MODELS)
def test_exported_models_predict_what_the_float_ones_do(
    tmp_path: Path, config: ModelConfig, labels: int, dense: bool
) -> None:
    model = _built(config, labels, dense=dense)
    report = export_model(model, tmp_path / "a", ExportConfig(data_type=DataType.FP32))
    assert max(d.max_abs for of in report.differences.values() for d in of.values()) < 1e-5
    # No region: all of it is steps.
    assert set(kinds_of(lowered(model))) == {"plan"}
    artifact = load_artifact(tmp_path / "a")
    names = [output.name for output in artifact.signature.outputs]
    assert names == (["score"] if labels == 1 else [f"label_{i}" for i in range(labels)])
    assert [(d.width, d.missing) for d in artifact.signature.dense] == ([(2, True)] if dense else [])


def test_the_sum_over_pairs() -> None:
    vectors = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    pairs = sum(vectors[:, i] * vectors[:, j] for i in range(4) for j in range(i))
    np.testing.assert_allclose(pairwise_sum(torch.from_numpy(vectors)).numpy(), pairs, rtol=1e-4, atol=1e-5)


def _by_layers(network: FactorizedNetwork, flat: Tensor, vectors: Tensor) -> Tensor:
    logits: Tensor = network.linear(flat) + network.over(network.deep(flat))
    return logits + network.second_order(pairwise_sum(vectors))


@pytest.mark.parametrize("frozen", [[], ["flat"], ["vectors"], ["deep.", "linear.bias"], ["weight"]])
def test_a_factorized_network_has_the_gradients_of_autograd(frozen: list[str]) -> None:
    network = FactorizedNetwork(6, 3, 2, [4, 5]).double()
    flat, vectors = (torch.randn(*shape, dtype=torch.float64) for shape in ((5, 6), (5, 2, 3)))
    parts = {"flat": flat, "vectors": vectors, **dict(network.named_parameters())}
    for name, part in parts.items():
        part.requires_grad_(not any(text in name for text in frozen))
    learned = [part for part in parts.values() if part.requires_grad]
    found, expected = network(flat, vectors), _by_layers(network, flat, vectors)
    torch.testing.assert_close(found, expected)
    for of_found, of_expected in zip(
        torch.autograd.grad(found.square().sum(), learned),
        torch.autograd.grad(expected.square().sum(), learned),
        strict=True,
    ):
        torch.testing.assert_close(of_found, of_expected)
    scripted = torch.jit.script(network)
    torch.testing.assert_close(scripted(flat, vectors), expected)


def test_a_factorized_network_has_gradients_of_gradients() -> None:
    torch.manual_seed(0)
    network = FactorizedNetwork(6, 3, 2, [4]).double()
    flat, vectors = (
        torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in ((5, 6), (5, 2, 3))
    )
    assert torch.autograd.gradgradcheck(network, (flat, vectors))


def test_function_transforms_take_a_factorized_network() -> None:
    network = FactorizedNetwork(6, 3, 1, [4])
    flat, vectors = torch.randn(5, 6), torch.randn(5, 2, 3, requires_grad=True)
    weights = dict(network.named_parameters())
    losses = lambda given: torch.func.functional_call(network, given, (flat, vectors)).sum()  # noqa: E731
    found = torch.func.grad(losses)(weights)
    _by_layers(network, flat, vectors).sum().backward()
    for name, weight in weights.items():
        torch.testing.assert_close(found[name], weight.grad)


def test_hooks_and_other_modules_of_a_factorized_network_run_in_training() -> None:
    network = FactorizedNetwork(6, 3, 2, [4])
    flat, vectors = torch.randn(5, 6, requires_grad=True), torch.randn(5, 2, 3)
    seen: list[Tensor] = []
    hook = network.deep.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    network(flat, vectors)
    assert [output.shape for output in seen] == [(5, 4)]
    hook.remove()
    network.deep = MLP(6, [4], activation="sigmoid")
    torch.testing.assert_close(network(flat, vectors), _by_layers(network, flat, vectors))
    network.deep, network.second_order = MLP(6, [4]), nn.Linear(3, 2)
    torch.testing.assert_close(network(flat, vectors), _by_layers(network, flat, vectors))


def test_models_without_dense_columns_are_trained_with_dense_features_of_width_0() -> None:
    model = _built(_config("deepfm"), dense=False)
    kjt = KeyedJaggedTensor(keys=["a", "b", "c"], values=[1, 2, 3], lengths=[1, 1, 1])
    trained = trained_form(model, LogitsOf)
    logits, _ = trained(torch.zeros(1, 0), kjt)
    torch.testing.assert_close(logits, model.logits(None, kjt))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        trained(torch.zeros(1, 2), kjt)


def test_the_item_tower_never_sees_the_user() -> None:
    model = _built(_config("twotower", item_features=("b",)))
    item = [torch.randn(1, 4) for _ in range(2)]
    scores = model.model.towers(torch.randn(2, 4 * 2 + 3).expand(2, -1), torch.cat(item))
    assert scores.shape == (2, 1)
    kjt = KeyedJaggedTensor(keys=["a", "b", "c"], values=[1, 2, 3], lengths=[1, 1, 1])
    dense = torch.zeros(1, 2)
    before = model.model.sparse_arch(kjt)
    towers: Any = model.model.towers
    user = torch.cat((model.transforms(dense), before[:, [0, 2]].flatten(1)), dim=1)
    expected = (towers.user(user) * towers.item(before[:, 1])).sum(dim=1) * 6**-0.5
    torch.testing.assert_close(model.logits(dense, kjt)[:, 0], expected)


@pytest.mark.parametrize(
    ("config", "labels", "text"),
    [
        pytest.param(
            _config("twotower", item_features=("z",)), 1, "item_features: got \\['z'\\]", id="unknown"
        ),
        pytest.param(_config("twotower", item_features=("a",)), 2, "two towers give one score", id="labels"),
        pytest.param(
            _config("finalmlp", item_features=("z",)), 1, "item_features: got \\['z'\\]", id="gates"
        ),
    ],
)
def test_what_does_not_fit(config: ModelConfig, labels: int, text: str) -> None:
    with pytest.raises((CheckpointError, ValueError), match=text):
        _built(config, labels)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"model": "gbdt"}, "model: got 'gbdt', expected one of dlrm"),
        ({"model": "twotower"}, "a twotower model needs the items' features"),
        ({"model": "mmoe", "tower_layers": ()}, "model sizes"),
        ({"model": "ple", "extraction_levels": 0}, "model sizes"),
        ({"model": "masknet", "over_layers": (8,)}, "a masknet model needs a block's size"),
        ({"model": "finalmlp", "fusion_heads": 5}, "fusion_heads: got 5, expected a divisor of 32"),
    ],
)
def test_model_configs(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ModelConfig(**fields)
