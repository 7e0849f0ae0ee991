"""Public models exported, served, and compared with what their packages predict.

Shape letters: B batch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure.processes import module, started
from benchmarks.measure.tables import tracked
from benchmarks.plain_models.catalogue import PublicModel
from export.config import ExportConfig, PlainOptions, target_name
from export.graph.graph import named_outputs
from export.pipeline import export_model
from export.plain.check import Converted
from export.plain.convert import converted
from export.plain.given import Given, given_inputs
from export.verify.compare import END_TO_END_TOLERANCES
from recsys.artifact.manifest import Manifest
from recsys.artifact.manifest_file import MANIFEST_NAME
from recsys.configs import DataType
from recsys.errors import ExportError
from recsys.rows.format import RowFormat, dequantize_rows, quantize_rows
from serve.client import Client

#: By distribution, the module that lists its models.
LIBRARIES = {
    "deepctr-torch": "deepctr",
    "fuxictr": "fuxictr_models",
    "recbole": "recbole_models",
    "torch-rechub": "rechub",
    "torchfm": "torchfm_models",
    "transformers4rec": "transformers4rec_models",
}
_TARGETS = (("cpu",), ("cpu", "cpu"))
# Deviations of embeddings, and of layers that begin below the other one: some packages begin near zero, where all rows
# have one prediction.
_DEVIATION = 0.3
_LEAST_DEVIATION = 0.01
_SEED, _OTHER_SEED = 1, 2


@dataclass(kw_only=True)
class Row:
    """What became of one model.

    Attributes:
        library: Its distribution.
        name: The model's.
        glue: Lines of code that a user adds.
        error: Why it was not exported or served; empty where it was.
        is_served: Whether a server answered for it.
        difference: The answers' largest difference to the model over the rows that are stored, as a share of the bound
            for arithmetic.
        rows_difference: Their largest difference to the float model, in units of what the stored rows make of it.
    """

    library: str
    name: str
    glue: int
    error: str = ""
    is_exported: bool = False
    is_served: bool = False
    difference: float = 0.0
    rows_difference: float = 0.0

    @property
    def is_right(self) -> bool:
        """Whether the model was served with the answers that it must give."""
        return self.is_served and self.difference <= 1


@dataclass(kw_only=True)
class _Exported:
    """A model in the repository."""

    row: Row
    request: Mapping[str, Any]
    expected: Mapping[str, Tensor]
    floats: Mapping[str, Tensor]


def public_models(libraries: Sequence[str]) -> tuple[list[PublicModel], dict[str, str]]:
    """Return the models of some distributions, and by distribution why its models are missing."""
    found: list[PublicModel] = []
    missing = {}
    for library in libraries:
        try:
            listed = import_module(f"benchmarks.plain_models.{LIBRARIES[library]}")
        except (ImportError, AttributeError) as error:
            missing[library] = f"{type(error).__name__}: {error}"
        else:
            found += listed.public_models()
    return found, missing


def rows_of(models: Sequence[PublicModel], engine: str, repository: Path) -> list[Row]:
    """Export all models into an empty folder, and ask servers of both targets for them.

    Raises:
        StepError: A server did not start.
    """
    rows, exported = [], {}
    for i, public in enumerate(tracked(models, "export")):
        row, found = _exported(public, repository / f"m{i}" / "1")
        rows.append(row)
        if found is not None:
            exported[f"m{i}"] = found
    for target in _TARGETS if exported else ():
        _ask(exported, repository, target_name(target), engine)
    return rows


def _exported(public: PublicModel, path: Path) -> tuple[Row, _Exported | None]:
    row = Row(library=public.library, name=public.name, glue=len(public.glue))
    torch.manual_seed(_SEED)
    model, arguments = public.make()
    torch.manual_seed(_OTHER_SEED)
    _, others = public.make()
    model = _entered(model)
    path.parent.mkdir()
    options = PlainOptions(inputs=arguments, method=public.method)
    try:
        export_model(model, path, ExportConfig(name=path.parent.name, targets=_TARGETS, plain=options))
        found = converted(model, options)
        row.is_exported = True
        given = given_inputs(model, others, public.method)
        floats = _answers(given, model)
        expected = _answers(given, _stored(model, found))
        request = _wanted(found.inputs.request(given), path)
    except ExportError as error:
        row.error = str(error)
    except Exception as error:  # a fault of ours: the table shows it
        row.error = f"FAULT {type(error).__name__}: {error}"
    else:
        return row, _Exported(row=row, request=request, expected=expected, floats=floats)
    if not row.is_exported:
        path.parent.rmdir()
    return row, None


def _wanted(request: Mapping[str, Any], artifact: Path) -> dict[str, Any]:
    """Return the inputs that an artifact takes."""
    signature = Manifest.loads((artifact / MANIFEST_NAME).read_text()).signature
    names = {"dense": [one.name for one in signature.dense], "sparse": [one.name for one in signature.sparse]}
    return {kind: {name: request[kind][name] for name in names[kind]} for kind in names}


def _entered(model: nn.Module) -> nn.Module:
    """Return the model in evaluation mode, with rows that matter."""
    for weight in model.parameters():
        if weight.dim() > 1 and weight.is_floating_point() and weight.std() < _LEAST_DEVIATION:
            nn.init.normal_(weight, std=_DEVIATION)
    for part in model.modules():
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)):
            nn.init.normal_(part.weight, std=_DEVIATION)
            if part.padding_idx is not None:
                nn.init.zeros_(part.weight.data[part.padding_idx])
    return model.eval()


def _stored(model: nn.Module, found: Converted) -> nn.Module:
    """Return the model over the rows that its artifact holds."""
    made = copy.deepcopy(model)
    for table in found.tables:
        if not table.stays_dense:
            weight = made.get_parameter(table.path).data
            rows = quantize_rows(weight, DataType.INT8)
            weight.copy_(dequantize_rows(rows, RowFormat(data_type=DataType.INT8, dim=weight.shape[1])))
    return made


def _answers(given: Given, model: nn.Module) -> dict[str, Tensor]:
    with torch.no_grad():
        return named_outputs(given.call(copy.deepcopy(model)))


def _ask(exported: Mapping[str, _Exported], repository: Path, target: str, engine: str) -> None:
    options = ("--target", target, "--engine", engine, "--port", "0", "--no-metrics", "--json")
    command = module("serve.app.cli", "--repository", str(repository), *options)
    with (repository.parent / f"{repository.name}.log").open("w") as log, started(command, log) as server:
        for name, one in exported.items():
            with Client(server.address, model=name) as client:
                try:
                    dense = {key: torch.tensor(value).numpy() for key, value in one.request["dense"].items()}
                    found = client.predict(dense, one.request["sparse"])
                except Exception as error:  # the table shows it
                    one.row.error, one.row.is_served = f"{type(error).__name__}: {error}", False
                    continue
            one.row.is_served = True
            for output, answer in found.items():
                _compare(one, output, torch.from_numpy(answer.copy()))


def _compare(one: _Exported, output: str, found: Tensor) -> None:
    expected, floats = one.expected[output].double(), one.floats[output].double()
    largest = max(float(expected.abs().max()), 2.0**-10)
    bound = END_TO_END_TOLERANCES[torch.float32] * largest
    of_rows = max(float((expected - floats).abs().max()), bound)
    one.row.difference = max(one.row.difference, float((found - expected).abs().max()) / bound)
    one.row.rows_difference = max(one.row.rows_difference, float((found - floats).abs().max()) / of_rows)
