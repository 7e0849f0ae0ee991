"""A stand-in for a CUDA device: a target for one in host memory, whose recorded work is done again.

Shape letters: B batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.cuda.graphs import BucketedForward, Capture, CudaGraphOptions
from recsys.artifact.graphs import LoadedGraphs, load_skeletons, place, set_attribute
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.artifact.loaded_rows import LoadedRows
from recsys.rows.layout import copy_blocks
from recsys.sharding.plan.device_rows import DeviceRows, device_layouts
from tests.support.models.export_models import ModelCase

TARGET = "cuda:0"
# recsys.kernels.int_nbit: the operator of the CPU reads rows in host memory alone.
_HOST = 3


@dataclass
class HostRecorder:
    """Does work again in host memory.

    Attributes:
        num_records: How many works were recorded.
        num_replays: How often they were done again.
        before: Called before each time.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    num_records: int = 0
    num_replays: int = 0
    before: Callable[[], None] = lambda: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return the same work, counted."""
        self.num_records += 1
        work()

        def replay() -> None:
            with self.lock:
                self.num_replays += 1
            self.before()
            work()

        return replay


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """One artifact, loaded for the CPU, and for a CUDA device that host memory stands in for.

    Attributes:
        on_cpu: The first.
        graphs: Those of the second; only batches that are replayed run here.
        rows: The rows of the second.
        recorder: The second's.
    """

    on_cpu: LoadedArtifact
    graphs: LoadedGraphs
    rows: LoadedRows
    recorder: HostRecorder

    def replayed(self, *inputs: Tensor) -> dict[str, Tensor] | None:
        """The outputs of a batch; None where it would run by ``forward``, on the device."""
        bucketed = self.graphs.calls[0]
        assert isinstance(bucketed, BucketedForward)
        with torch.inference_mode():
            return bucketed._replayed(inputs)


def stand_in(
    path: Path, case: ModelCase, rows: tuple[int, ...], *, ids_per_row: int = 0, **options: Any
) -> StandIn:
    """Export a model for the CPU and for a CUDA device, and load both."""
    config = ExportConfig(targets=(("cpu",), (TARGET,)), table_data_types=case.table_data_types, **options)
    export_model(case.make(), path, config)
    on_cpu = load_artifact(path, target="cpu", scripted=True)
    recorder = HostRecorder()
    manifest = on_cpu.manifest
    target = next(target for target in manifest.targets if target.name == TARGET)
    modules = load_skeletons(path, manifest, target)
    # Rows in the device's layout, with its alignment.
    source, blob = manifest.layout, on_cpu.rows.ranks[0].rows
    [layout] = device_layouts(source, target.plan.plan, [torch.device(TARGET)])
    cpu = torch.device("cpu")
    ranks = [DeviceRows(device=cpu, layout=layout, rows=copy_blocks(source, blob, layout, cpu))]
    for graph, module in zip(target.graphs, modules, strict=True):
        place(module, graph, ranks)
        for name, buffer in list(module.named_buffers()):
            if name.endswith(".placements"):
                set_attribute(module, name, torch.full_like(buffer, _HOST))
    capture = Capture(
        options=CudaGraphOptions(rows=rows, ids_per_row=ids_per_row),
        signature=manifest.signature,
        device=cpu,
        recorder=lambda _: recorder,
    )
    graphs = LoadedGraphs(modules, target, capture=capture)
    loaded = LoadedRows(manifest=manifest, ranks=ranks, graphs=graphs)
    return StandIn(on_cpu=on_cpu, graphs=graphs, rows=loaded, recorder=recorder)
