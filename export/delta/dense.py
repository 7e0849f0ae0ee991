"""Dense weights of a delta: the tensors in which an artifact's graphs differ from those of a new export.

The new checkpoint is traced for every target as an export does it. So with the delta applied, the graphs hold
what a new export would hold, whatever tracing makes of the weights: their dtype, or constants that are computed
from them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from export.artifact.writing import WrittenPrograms, write_graphs, write_programs
from export.config import ExportConfig, read_of_forward
from export.graph.inputs.forward import parameters
from export.graph.inputs.pruning import features_of, pruned
from export.graph.prepared import PreparedModel
from export.lower.part import text_and_weights
from export.prepare import in_range, prepare
from export.verify.float_model import float_outputs, with_outputs
from export.verify.reference import float_model
from recsys.artifact.batches.answers import warm_up_rows
from recsys.artifact.graphs import dense_tensors, load_skeletons
from recsys.artifact.manifest import Manifest
from recsys.artifact.parts import checked_part
from recsys.artifact.targets import DENSE_DTYPES, Target
from recsys.errors import ExportError
from recsys.find_collections import find_collections
from recsys.inputs.signature import IdPolicy
from recsys.scripting import torchscript

_WHOLE = "export the new checkpoint as a whole, or pass --tables-only to leave the dense weights as they are"


@dataclass(frozen=True)
class Form:
    """A form of a target: what it computes, and from which dense weights."""

    text: str
    weights: Mapping[str, Tensor]


def dense_changes(
    new: nn.Module, artifact: Path, manifest: Manifest, applied: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the dense weights in which a new export would differ from an artifact, by path, in host memory.

    Args:
        new: The new model.
        artifact: The artifact.
        manifest: Its manifest.
        applied: The dense weights that deltas of the artifact changed before.

    Raises:
        ExportError: The graphs differ in more than weights.
    """
    return changes_of(stored_forms(artifact, manifest), traced_forms(new, manifest), applied)


def stored_forms(artifact: Path, manifest: Manifest) -> list[Form]:
    """Return the forms of all targets of an artifact."""
    return [
        form
        for target in manifest.targets
        for form in (
            _programs_of(artifact, manifest, target)
            if target.skeleton is None
            else _forms(load_skeletons(artifact, manifest, target), target)
        )
    ]


def changes_of(
    stored: Sequence[Form], fresh: Sequence[Form], applied: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the dense weights in which forms differ from an artifact's; otherwise as ``dense_changes``.

    Args:
        stored: The artifact's.
        fresh: Those that a new export would have.
        applied: As for ``dense_changes``.
    """
    changed: dict[str, Tensor] = {}
    for before, after in zip(stored, fresh, strict=True):
        if after.text != before.text or not _have_same_shapes(before, after):
            raise ExportError(
                "delta: a new export of the new checkpoint would have another graph than the artifact: numbers that "
                "the model computes while it is traced have changed, or the options or the releases of torch and this "
                f"package with which the artifact was made; {_WHOLE}"
            )
        held = {**before.weights, **applied}
        changed |= {path: w for path, w in after.weights.items() if not torch.equal(held[path], w)}
    for path, weight in changed.items():
        _check_storable(path, weight)
        if any(path in form.weights and not torch.equal(form.weights[path], weight) for form in fresh):
            raise ExportError(
                f"delta: dense weight {path!r} is not the same in all targets and forms of the artifact; {_WHOLE}"
            )
    return changed


def _have_same_shapes(first: Form, second: Form) -> bool:
    about = [{path: (w.dtype, w.shape) for path, w in form.weights.items()} for form in (first, second)]
    return about[0] == about[1]


def _check_storable(path: str, weight: Tensor) -> None:
    if weight.dtype not in DENSE_DTYPES.values():
        raise ExportError(
            f"delta: dense weight {path!r}: got {weight.dtype}, expected one of {', '.join(DENSE_DTYPES)}; {_WHOLE}"
        )
    if weight.is_floating_point() and not bool(weight.isfinite().all()):
        raise ExportError(
            f"delta: new checkpoint: dense weight {path!r}: got a number that is not finite, expected finite numbers"
        )


def _config_of(model: nn.Module, manifest: Manifest) -> ExportConfig:
    """Return the options that an artifact's graphs were made with, as far as its manifest and the model tell."""
    signature = manifest.signature
    dense = {one.name: one.width for one in signature.dense}
    defaults = tuple(
        p.name for p in parameters(model) if p.has_default and p.kind is not None and p.name not in dense
    )
    given = {"defaults": defaults, **read_of_forward(manifest.options)}
    said = given.get("dense_widths", {})
    given["dense_widths"] = {**said, **{name: width for name, width in dense.items() if said.get(name) != 0}}
    return ExportConfig(
        name=manifest.name,
        table_data_types={info.table.name: info.table.data_type for info in manifest.tables},
        targets=tuple(target.devices for target in manifest.targets),
        target_plans={target.name: target.plan for target in manifest.targets},
        table_id_policies={
            use.name: use.id_policy
            for feature in signature.sparse
            for use in feature.tables
            if use.id_policy is not IdPolicy.MAPPED
        },
        dense_dtype=manifest.targets[0].dense_dtype,
        context=signature.context,
        batch="request" if signature.by_request else "rows",
        strings={feature.name: feature.strings for feature in signature.sparse if feature.strings},
        separators={feature.name: feature.separator for feature in signature.sparse if feature.separator},
        **given,
    )


def traced_forms(model: nn.Module, manifest: Manifest) -> list[Form]:
    """Trace a model as an export does, for all targets, and script or export it as the artifact's graphs are."""
    model = _with_read_tables(model, manifest)
    prepared = _with_fitting_rows(prepare(model, _config_of(model, manifest), _silent), manifest)
    prepared = with_outputs(prepared, float_outputs(prepared, float_model(prepared)))
    forms = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for target in manifest.targets:
            if target.skeleton is None:
                programs = write_programs(prepared, work)
                if not programs.parts:
                    raise ExportError(
                        f"delta: new checkpoint: it has no program: {programs.missing}; {_WHOLE}"
                    )
                forms += [_program((work / part.path).read_bytes()) for part in programs.parts]
                continue
            written = write_graphs(prepared, target.name, work, WrittenPrograms())
            forms += _forms([torchscript.load(work / part.path) for part in written.parts], written.target)
    return forms


def _with_read_tables(model: nn.Module, manifest: Manifest) -> nn.Module:
    """Return the model without the collections that the export left out, as forward looks nothing up in them."""
    if "outputs" in manifest.options:
        return model
    collections = find_collections(model, error=ExportError)
    paths = manifest.targets[0].plan.plan
    read = {path: features_of(one) for path, one in collections.items() if path in paths}
    return model if len(read) == len(collections) else pruned(model, collections, read)


def _with_fitting_rows(prepared: PreparedModel, manifest: Manifest) -> PreparedModel:
    """Return the model with samples that the artifact's model takes."""
    sizes = {feature.name: feature.num_ids for feature in manifest.signature.sparse}
    sparse = tuple(replace(f, num_ids=sizes.get(f.name)) for f in prepared.signature.sparse)
    signature = replace(prepared.signature, sparse=sparse)
    rows = warm_up_rows(signature, manifest.verified_rows(), prepared.samples.num_rows)
    return replace(prepared, signature=signature, samples=rows, clean=in_range(signature, rows))


def _programs_of(artifact: Path, manifest: Manifest, target: Target) -> list[Form]:
    """Return the forms of a target without TorchScript: its programs. Its ExportedPrograms are not trusted."""
    names = [graph.program for graph in target.graphs if graph.program is not None]
    if len(names) < len(target.graphs):
        raise ExportError(
            f"delta: target {target.name!r} holds neither TorchScript nor a program, expected one of them; {_WHOLE}"
        )
    forms = []
    for name in names:
        with checked_part(artifact, manifest, name) as file:
            forms.append(_program(file.read()))
    return forms


def _program(part: bytes) -> Form:
    return Form(*text_and_weights(part))


def _forms(modules: Sequence[torch.jit.ScriptModule], target: Target) -> list[Form]:
    return [Form(torchscript.graph_text(module), dense_tensors(module, target.plan)) for module in modules]


def _silent(step: str, done: int, total: int) -> None:
    del step, done, total
