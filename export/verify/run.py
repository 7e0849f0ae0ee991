"""The verification of an export: float model, stored rows and artifact predict for the same samples.

There are two steps, to locate failures. Per table, the outputs of the stored rows must be within the bound
given by the rows' scales of the float model's outputs. End to end, the artifact's predictions must equal
those of the model's dense layers on the stored rows, up to the arithmetic of their dtype.

Shape letters: B rows of a batch, D embedding dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from export.graph.graph import ExportedModel, Ids
from export.graph.modules import replace_modules
from export.graph.prepared import PreparedModel, target_modules
from export.tables import on_host
from export.verify.compare import (
    CUDA_ROWS_TOLERANCE,
    END_TO_END_TOLERANCES,
    LINEAR_TOLERANCES,
    Checked,
    Difference,
    ItemScores,
    bound_of,
    call_model,
    compare,
    largest,
)
from export.verify.float_model import FloatOutputs
from export.verify.ranking import Predict, PredictRanking, check_ranking
from export.verify.reference import oracles, with_collections
from recsys.artifact.batches.answers import Answers, few_rows
from recsys.artifact.batches.ranking import RankingBatch, picked
from recsys.artifact.batches.samples import Batch, fewest_rows
from recsys.artifact.exported import load_exported_artifact
from recsys.artifact.load import LoadedArtifact, load_artifact, open_artifact
from recsys.artifact.manifest import Manifest
from recsys.artifact.parts import ROWS_NAME, map_rows
from recsys.artifact.programs import ProgramGraphs
from recsys.errors import VerificationError
from recsys.jagged.keyed import KeyedTensor
from recsys.jagged.tensor import JaggedTensor
from recsys.kernels import operators
from recsys.rows.memory import RowsMemory
from recsys.sharding.plan.device_rows import DeviceRows
from recsys.sharding.plan.env import ShardingEnv

Load = Callable[..., LoadedArtifact]

# Sizes of the batches that graphs are verified with, beside that of all samples.
_SCRIPTED_SIZES = (1,)
_EXPORTED_SIZES = (1, 2, 3, 17, 1025)
_EXPECTED = "what the model makes of the stored rows"


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The measurements by target and output: the largest of the target's graphs in all formats and its program.

    Attributes:
        differences: The differences of its outputs to the float model.
        ranking: The differences of the ranking form's outputs to the plain form's; empty without a ranking form.
        checked: The differences of its outputs to those of the model on the stored rows, with the bounds that they are
            within, the largest in proportion to its bound; without integers, which are equal.
        ran_on: Where it ran.
        answers: Some rows with what the model makes of them, for loaders.
        steps: How many steps its program has; nothing for a target that the native kernels do not run here.
        hardly_varying: The outputs that are so equal for all samples that their differences prove nothing.
    """

    differences: dict[str, dict[str, Difference]]
    ranking: dict[str, dict[str, Difference]]
    checked: dict[str, dict[str, Checked]]
    ran_on: dict[str, str]
    answers: dict[str, Any]
    steps: dict[str, operators.StepCounts]
    hardly_varying: tuple[str, ...]


class Reference:
    """The model with its layers in the artifact's dtype, over the stored rows.

    Args:
        prepared: The model.
        work: The directory that holds the rows.

    Attributes:
        outputs: Of the samples, ready to be compared.
        scores: The scores of any item for the samples, if the model retrieves items.
    """

    def __init__(self, prepared: PreparedModel, work: Path) -> None:
        self._prepared = prepared
        collections = oracles(prepared, work, prepared.dense_dtype)
        self._model = with_collections(prepared, {**collections, **prepared.managed.learned()})
        self.outputs, self.scores = self._predict(prepared.samples)

    def of(self, rows: Tensor) -> tuple[dict[str, Tensor], ItemScores | None]:
        """Return the same for a batch of some rows of the samples."""
        if self._prepared.signature.by_request:
            return self._predict(picked(self._prepared.signature, self._prepared.samples, rows))
        scores = self.scores and ItemScores(users=self.scores.users[rows], items=self.scores.items)
        return {name: tensor[rows] for name, tensor in self.outputs.items()}, scores

    def _predict(self, batch: Batch) -> tuple[dict[str, Tensor], ItemScores | None]:
        prepared = self._prepared
        found = call_model(self._model, prepared.input_mapping, batch, dtype=prepared.dense_dtype)
        return found.comparable, found.scores


def verify(prepared: PreparedModel, work: Path, manifest: Manifest, floats: FloatOutputs) -> Verified:
    """Verify that the artifact predicts the same as the float model.

    Args:
        prepared: The model.
        work: The directory that holds the artifact, without its manifest.
        manifest: Its manifest so far.
        floats: What the float model returns for the samples.

    Raises:
        VerificationError: The artifact is wrong; the message says where.
    """
    _check_lookups(prepared, work, floats.collections)
    reference = Reference(prepared, work)
    hardly = _hardly_varying(prepared, floats.outputs)
    answers = _answers(prepared, reference)
    targets: dict[str, _VerifiedTarget] = {}
    for i, name in enumerate(prepared.stored.envs):
        prepared.progress("verify", i, len(prepared.stored.envs))
        targets[name] = _verify_target(prepared, work, manifest, name, reference, floats)
    return Verified(
        differences={name: found.differences for name, found in targets.items()},
        ranking={name: found.ranking for name, found in targets.items() if found.ranking},
        checked={name: found.checked for name, found in targets.items()},
        ran_on={name: found.ran_on for name, found in targets.items()},
        answers=answers,
        steps={name: found.steps for name, found in targets.items() if found.steps is not None},
        hardly_varying=hardly,
    )


@dataclass(frozen=True, kw_only=True)
class _VerifiedTarget:
    """The measurements of one target by output; see ``Verified``."""

    differences: dict[str, Difference]
    ranking: dict[str, Difference]
    checked: dict[str, Checked]
    ran_on: str
    steps: operators.StepCounts | None


def _verify_target(
    prepared: PreparedModel,
    work: Path,
    manifest: Manifest,
    name: str,
    reference: Reference,
    floats: FloatOutputs,
) -> _VerifiedTarget:
    """Verify a target in every way that it is run."""
    found = [
        _verify_way(prepared, way.open(), way, reference, floats)
        for way in _ways(prepared, work, manifest, name)
    ]
    return _VerifiedTarget(
        differences=largest([one.differences for one in found], lambda difference: difference.max_abs),
        ranking=largest([one.ranking for one in found], lambda difference: difference.max_abs),
        checked=largest([one.checked for one in found], lambda checked: checked.share),
        ran_on=found[-1].ran_on,
        steps=found[-1].steps,
    )


def _verify_way(
    prepared: PreparedModel, target: _Target, way: _Way, reference: Reference, floats: FloatOutputs
) -> _VerifiedTarget:
    outputs, checked = _check_samples(target, reference, prepared.samples, way.tolerance)
    _check_batch_sizes(prepared, target.predict, reference, way.tolerance, way.sizes)
    ranking = {}
    if prepared.signature.context:
        ranking = check_ranking(prepared, target.predict, target.predict_ranking)
    # The float model has no policies for IDs out of range, so it is compared on samples without such.
    if not torch.equal(prepared.clean.values, prepared.samples.values):
        outputs = target.predict(prepared.clean)
    differences = compare(outputs, floats.outputs, None, "the float model", floats.item_scores)
    return _VerifiedTarget(
        differences=differences, ranking=ranking, checked=checked, ran_on=target.ran_on, steps=target.steps
    )


def hardly_varying(outputs: Mapping[str, Tensor], num_rows: int) -> tuple[str, ...]:
    """Return the outputs that differ from row to row by no more than the comparison tolerates.

    Args:
        outputs: The float model's, by name.
        num_rows: B; outputs without a row for each are left out, and one row tells nothing.
    """
    if num_rows < 2:
        return ()
    return tuple(
        name
        for name, output in outputs.items()
        if output.dim() and len(output) == num_rows and output.numel() and not _varies(output)
    )


def _varies(output: Tensor) -> bool:
    rows = output.reshape(len(output), -1)
    if not output.is_floating_point():
        return bool((rows != rows[:1]).any())
    rows = rows.to(torch.float64).nan_to_num(0.0, 0.0, 0.0)
    spread = float((rows.amax(dim=0) - rows.amin(dim=0)).max())
    return spread > bound_of(rows, END_TO_END_TOLERANCES[torch.float32])


def _hardly_varying(prepared: PreparedModel, outputs: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return the outputs that prove nothing.

    Raises:
        VerificationError: None proves anything, and the user does not accept that.
    """
    found = hardly_varying(outputs, prepared.clean.num_rows)
    if len(found) < len(outputs) or prepared.config.accept_unproven:
        return found
    raise VerificationError(
        f"outputs {list(found)}: hardly vary over {prepared.samples_source}, so that equal outputs prove nothing of "
        "the artifact; expected rows like those of requests: give --samples with a table or with requests, or "
        "--accept-unproven if the model's outputs are the same for all rows"
    )


def _answers(prepared: PreparedModel, reference: Reference) -> dict[str, Any]:
    """Return some rows and what the model makes of them, by which loaders check operators; empty without any."""
    few = few_rows(prepared.signature, prepared.samples)
    if few is None:
        return {}
    # The items that score best tell little: equal scores have them in any order.
    outputs = reference.of(torch.arange(few.num_rows))[0] if reference.scores is None else {}
    tolerance = max(
        END_TO_END_TOLERANCES[prepared.dense_dtype], LINEAR_TOLERANCES[prepared.config.linear_dtype]
    )
    floats = {
        output.name: outputs[output.name]
        for output in prepared.signature.outputs
        if output.name in outputs and not output.is_integer
    }
    return Answers(batch=few, outputs=floats, tolerance=tolerance).to_json()


@dataclass(frozen=True, kw_only=True)
class _Way:
    """A way to run a target.

    Attributes:
        open: Opens it.
        tolerance: How far its outputs may be from the reference, relative to the largest of them.
        sizes: The sizes of further batches that it is compared on.
    """

    open: Callable[[], _Target]
    tolerance: float
    sizes: Sequence[int]


def _ways(prepared: PreparedModel, work: Path, manifest: Manifest, name: str) -> list[_Way]:
    """Return the ways in which a target is run: the formats of its graphs, and its program where that runs here."""
    env = prepared.stored.envs[name]
    is_here = not env.lacking()
    tolerance = END_TO_END_TOLERANCES[prepared.dense_dtype]
    if is_here and any(device.type == "cuda" for device in env.devices):
        tolerance = max(tolerance, CUDA_ROWS_TOLERANCE)

    def way(load: Load, tolerance: float, sizes: Sequence[int]) -> _Way:
        # Without such a device: the same plan in host memory, not scripted.
        opened = (
            partial(_loaded, work, manifest, name, load)
            if is_here
            else partial(_on_host, prepared, work, name, on_host(env))
        )
        return _Way(open=opened, tolerance=tolerance, sizes=sizes)

    ways: list[_Way] = []
    if prepared.config.is_scripted:
        ways.append(way(partial(load_artifact, scripted=True), tolerance, _SCRIPTED_SIZES))
    if prepared.config.is_exported:
        ways.append(way(load_exported_artifact, tolerance, _EXPORTED_SIZES))
    target = next(target for target in manifest.targets if target.name == name)
    if target.program is not None and is_here and not operators.why_missing():
        linear = max(tolerance, LINEAR_TOLERANCES[prepared.config.linear_dtype])
        ways.append(way(load_artifact, linear, ()))
    return ways


def _check_samples(
    target: _Target, reference: Reference, samples: Batch, tolerance: float
) -> tuple[dict[str, Tensor], dict[str, Checked]]:
    """Compare a target on all samples, and return its outputs, and how far they are from the reference."""
    outputs = target.predict(samples)
    expected = reference.outputs
    found = compare(outputs, expected, tolerance, _EXPECTED, reference.scores)
    checked = {
        name: Checked(max_abs=difference.max_abs, bound=bound_of(expected[name], tolerance))
        for name, difference in found.items()
        if expected[name].is_floating_point()
    }
    return outputs, checked


def _check_batch_sizes(
    prepared: PreparedModel, predict: Predict, reference: Reference, tolerance: float, sizes: Sequence[int]
) -> None:
    """Compare a graph on batches of sizes that compilers treat apart, made of the samples.

    A model whose rows belong together may not take one row.
    """
    for size in sizes:
        num_rows = max(size, fewest_rows(prepared.signature))
        rows = torch.arange(num_rows) % prepared.samples.num_rows
        expected, scores = reference.of(rows)
        outputs = predict(picked(prepared.signature, prepared.samples, rows))
        compare(outputs, expected, tolerance, f"{_EXPECTED} (a batch of {num_rows})", scores)


def _check_lookups(prepared: PreparedModel, work: Path, from_floats: dict[str, list[Any]]) -> None:
    # A separate function, so that its mapping of the rows is released before the next one.
    replaced = oracles(prepared, work, torch.float32)
    model = replace_modules(prepared.model, replaced)
    found = call_model(model, prepared.input_mapping, prepared.clean, watched=replaced)
    _check_tables({path: oracle.bounds for path, oracle in replaced.items()}, found.kept, from_floats)


def _columns(output: Any) -> dict[str, Tensor]:
    if isinstance(output, KeyedTensor):
        return output.to_dict()
    return {name: jagged.values() for name, jagged in output.items() if isinstance(jagged, JaggedTensor)}


def _check_tables(
    bounds: Mapping[str, Sequence[Mapping[str, Tensor]]],
    from_rows: Mapping[str, list[Any]],
    from_floats: Mapping[str, list[Any]],
) -> None:
    """Compare collections' outputs, stored rows against floats, within the bound of the rows' scales.

    Args:
        bounds: By path, the bounds of each call's outputs.
        from_rows: The outputs of the stored rows, call by call.
        from_floats: The outputs of each float collection, call by call.

    Raises:
        VerificationError: Names the feature (and table), the row of the batch, the difference and the bound.
    """
    for path, of_calls in bounds.items():
        for stored, floats, of_call in zip(from_rows[path], from_floats[path], of_calls, strict=True):
            _check_call(path, _columns(stored), _columns(floats), of_call)


def _check_call(
    path: str, stored: Mapping[str, Tensor], floats: Mapping[str, Tensor], bounds: Mapping[str, Tensor]
) -> None:
    for name, bound in bounds.items():
        difference = (stored[name].to(torch.float32) - floats[name].to(torch.float32)).abs()
        excess = difference - bound
        if excess.numel() and not float(excess.max()) <= 0:  # NaN fails too
            at = int(excess.amax(dim=1).argmax())
            raise VerificationError(
                f"lookup {name!r} of collection {path!r}, row {at} of the samples: the stored rows give "
                f"{float(difference[at].max()):g} away from the float table, expected at most "
                f"{float(bound[at].max()):g}, which their scales imply"
            )


@dataclass(frozen=True, kw_only=True)
class _Target:
    """A target's two forms, their devices, and how many steps the plain form runs if it is a program."""

    predict: Predict
    predict_ranking: PredictRanking
    ran_on: str
    steps: operators.StepCounts | None = None


def _loaded(work: Path, manifest: Manifest, name: str, load: Load) -> _Target:
    opened = open_artifact(work, manifest, name)
    artifact = load(opened, verify_checksums=False, memory=RowsMemory(random_access=True))
    steps = artifact.graphs.steps if isinstance(artifact.graphs, ProgramGraphs) else ()
    return _Target(
        predict=lambda batch: artifact.forward(*batch.inputs()),
        predict_ranking=lambda batch: artifact.forward_ranking(*batch.inputs()),
        ran_on=name,
        steps=next(iter(steps), None),
    )


def _on_host(prepared: PreparedModel, work: Path, name: str, env: ShardingEnv) -> _Target:
    layout = prepared.stored.layout
    blob = map_rows(work / ROWS_NAME, layout, random_access=True)
    ranks = [DeviceRows(device=device, layout=layout, rows=blob) for device in env.devices]
    modules = target_modules(prepared, name, ranks)

    def form(collections: Mapping[str, nn.Module], context: Sequence[str]) -> ExportedModel:
        model = with_collections(prepared, collections)
        return ExportedModel(model, prepared.input_mapping, env.devices, prepared.dense_dtype, context)

    plain = form(modules.plain, ())

    def predict(batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            return plain.run(batch.dense, batch.lengths, batch.values, batch.weights)

    def predict_ranking(batch: RankingBatch) -> dict[str, Tensor]:
        context = Ids(batch.context_lengths, batch.context_values, batch.context_weights)
        rows = Ids(batch.lengths, batch.values, batch.weights)
        ranking = form(modules.ranking, prepared.signature.context)
        with torch.no_grad():
            return ranking.run_ranking(batch.dense, context, rows, batch.row_context)

    return _Target(
        predict=predict, predict_ranking=predict_ranking, ran_on="cpu, the same plan (no such device here)"
    )
