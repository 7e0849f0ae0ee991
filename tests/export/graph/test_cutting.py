"""Which graphs get methods to record, and what these hold.

Shape letters: B batch.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from export.artifact.writing import make_graphs
from export.config import ExportConfig
from export.graph.graph import Graph
from export.prepare import prepare
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.cuda.graphs import METHODS, ON_DEVICE, TO_SEND
from recsys.scripting import torchscript
from tests.support.helpers import bag
from tests.support.models.export_models import CASES, CUDA_CASES, batch_of, exported


class Pooled(nn.Module):
    """One table; what is done with its rows is the case."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ebc = EmbeddingBagCollection([bag("t", 33, 8, ["f"])])
        self.layer = nn.Linear(8, 8)
        self.register_buffer("scale", torch.full((8,), 0.5))

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        raise NotImplementedError


class ByStride(Pooled):
    """The batch size is a number that host memory tells."""

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        return self.ebc(features).values().reshape(features.stride(), 2, 4).sum(dim=2)


class InPlace(Pooled):
    """What an operator returns is not used; what it writes to is."""

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        rows = self.layer(self.ebc(features).values())
        rows.mul_(2.0)
        return rows + torch.exp(self.scale)


class ReadsLengths(Pooled):
    """Lengths are copied to the device by the model."""

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        rows = self.ebc(features).values()
        return rows * features.lengths().to(rows.device).reshape(-1, 1)


class Computes(Pooled):
    """IDs are computed of the request's."""

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        shifted = KeyedJaggedTensor(["f"], (features.values() + 1) % 33, lengths=features.lengths())
        rows: Tensor = self.ebc(shifted).values()
        return rows


def graph_of(model: nn.Module, devices: tuple[str, ...] = ("cuda:0",), **options: object) -> Graph:
    """The plain form for a target."""
    job = prepare(model.eval(), ExportConfig(targets=(devices,), **options), lambda *_: None)  # type: ignore[arg-type]
    return make_graphs(job, ",".join(devices), is_scripted=True)[0]


def methods(graph: Graph) -> list[str]:
    """Those of its script."""
    return [name for name in METHODS if hasattr(graph.script, name)]


@pytest.mark.parametrize("name", CASES)
def test_which_models_get_methods(name: str) -> None:
    case = CUDA_CASES[name]
    # Sizes of sequences follow the IDs; one collection that looks up two arguments is sent each by itself.
    without = ("sequences", "two arguments with one name")
    found = methods(graph_of(case.make(), table_data_types=case.table_data_types))
    assert found == ([] if name in without else [TO_SEND, ON_DEVICE])


@pytest.mark.parametrize("devices", [("cpu",), ("cuda:0", "cuda:1"), ("cpu", "cpu")])
def test_targets_of_other_devices_get_none(devices: tuple[str, ...]) -> None:
    assert methods(graph_of(CASES["dlrm"].make(), devices)) == []


def test_two_ranks_on_one_device_get_them() -> None:
    assert methods(graph_of(CASES["dlrm"].make(), ("cuda:0", "cuda:0"))) == [TO_SEND, ON_DEVICE]


@pytest.mark.parametrize("make", [ReadsLengths, Computes])
def test_other_tensors_in_host_memory(make: type[nn.Module]) -> None:
    assert methods(graph_of(make())) == []


def test_the_ranking_form_gets_none(tmp_path: Path) -> None:
    exported(
        CASES["bare collection"].make(), tmp_path / "a", targets=(("cpu",), ("cuda:0",)), context=("user",)
    )
    plain, ranking = (torchscript.load(tmp_path / "a" / f"{name}-1.pt") for name in ("target", "ranking"))
    assert [hasattr(plain, name) for name in METHODS] == [True, True]
    assert [hasattr(ranking, name) for name in METHODS] == [False, False]


def test_sizes_of_host_memory_cross_as_numbers() -> None:
    script = graph_of(ByStride()).script
    parts, sizes = script.to_send(torch.tensor([1, 0, 2]), torch.tensor([3, 4, 5]))  # type: ignore[union-attr]
    assert [part.tolist() for part in parts] == [[3, 4, 5], [0, 1, 1, 3]]
    assert sizes == [3]


def test_checks_of_inputs_stay_before_the_copy() -> None:
    script = graph_of(CASES["dlrm"].make()).script
    assert script is not None
    held, checks = [script.to_send.graph, script.on_device.graph], "fbgemm::bounds_check_indices"
    assert [len(list(graph.findAllNodes(checks))) for graph in held] == [1, 0]
    copies = ("aten::pin_memory", "aten::to", "aten::cat")
    assert not any(list(held[0].findAllNodes(kind)) for kind in copies)
    assert not any(list(held[1].findAllNodes(kind)) for kind in copies[:2])


def test_what_is_written_in_place_is_kept() -> None:
    model = InPlace()
    script = graph_of(model).script
    assert script is not None
    kinds = torchscript.operators(script)
    assert kinds["aten::mul_"] == 1
    assert len(list(script.on_device.graph.findAllNodes("aten::mul_"))) == 1


def test_forward_is_as_without_methods() -> None:
    graph = graph_of(CASES["dlrm"].make())
    assert graph.script is not None
    alone = torchscript.script(torch.fx.GraphModule(graph.module, graph.module.graph))
    assert torchscript.graph_text(alone) == torchscript.graph_text(graph.script)
    # Readers that do not know the methods freeze without them.
    assert not hasattr(torchscript.freeze(graph.script), TO_SEND)
    assert hasattr(torchscript.freeze(graph.script, METHODS), TO_SEND)


def test_an_input_that_nothing_reads(tmp_path: Path) -> None:
    class Unread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ebc = EmbeddingBagCollection([bag("t", 33, 8, ["f"])])

        def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
            rows: Tensor = self.ebc(features).values()
            return rows

    _, artifact = exported(
        Unread(), tmp_path / "a", targets=(("cpu",), ("cuda:0",)), dense_widths={"dense": 3}
    )
    script = torchscript.load(tmp_path / "a" / "target-1.pt")
    parts, sizes = script.to_send(*batch_of(artifact.signature, 2).inputs())
    assert len(parts) == 3
    assert sizes == []
