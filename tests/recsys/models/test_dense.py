"""Dense transforms do what numpy does, in the float model and in a scripted graph."""

from __future__ import annotations

import numpy as np
import torch
from torch import fx

from export.graph.tracing.tracer import trace
from recsys.inputs.schema import DenseColumn
from recsys.models.dense import DenseTransforms
from recsys.scripting import torchscript

_COLUMNS = (
    DenseColumn(name="plain"),
    DenseColumn(name="filled", missing=7.0),
    DenseColumn(name="clipped", missing=1.0, clip=(-1.0, 3.0)),
    DenseColumn(name="bucketized", missing=-5.0, buckets=(0.0, 2.5)),
    DenseColumn(name="scaled", log1p=True, mean=0.5, std=2.0),
)


def _features(num_rows: int = 40) -> np.ndarray:
    generator = np.random.default_rng(0)
    features = (3 * generator.normal(size=(num_rows, len(_COLUMNS)))).astype(np.float32)
    features[generator.random(features.shape) < 0.2] = np.nan
    features[:, 0] = np.nan_to_num(features[:, 0])
    features[0, 3], features[1, 3] = 0.0, 2.5
    return features


def _expected(features: np.ndarray) -> np.ndarray:
    columns = []
    for column, values in zip(_COLUMNS, features.T, strict=True):
        filled = np.where(np.isnan(values), column.missing, values)
        if column.clip is not None:
            filled = filled.clip(*column.clip)
        if column.log1p:
            filled = np.sign(filled) * np.log1p(np.abs(filled))
        columns.append((filled - column.mean) / column.std)
    buckets = np.digitize(columns.pop(3), _COLUMNS[3].buckets)
    return np.concatenate([np.stack(columns, axis=1), np.eye(3)[buckets]], axis=1)


def test_transforms_are_numpys() -> None:
    transforms = DenseTransforms(_COLUMNS)
    found = transforms(torch.from_numpy(_features()))
    assert (transforms.in_features, transforms.out_features) == (5, 7)
    assert found.shape == (40, 7)
    np.testing.assert_allclose(found.numpy(), _expected(_features()), rtol=1e-5, atol=1e-6)


def test_a_scripted_graph_gives_the_same() -> None:
    transforms = DenseTransforms(_COLUMNS)

    # Without an annotated forward, which FX would carry over to a graph that TorchScript cannot read.
    class Root(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.transforms = transforms

        def forward(self, features):  # type: ignore[no-untyped-def]
            return self.transforms(features)

    root = Root()
    scripted = torchscript.script(fx.GraphModule(root, trace(root)))
    for num_rows in (0, 1, 40):
        features = torch.from_numpy(_features(max(num_rows, 2))[:num_rows])
        assert torch.equal(scripted(features), transforms(features))


def test_plain_columns_cost_nothing() -> None:
    graph = fx.symbolic_trace(DenseTransforms([DenseColumn(name="x"), DenseColumn(name="y")])).graph
    assert [node.op for node in graph.nodes] == ["placeholder", "output"]


def test_constants_are_real_on_the_meta_device() -> None:
    with torch.device("meta"):
        transforms = DenseTransforms(_COLUMNS)
    assert not any(buffer.is_meta for buffer in transforms.buffers())
    assert not transforms.state_dict()
