"""Running the proof: what is computed from floats, from stored rows and by the artifact, for the same samples.

Shape letters: B batch, D embedding dim.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from export.graph import ExportedModel, Ids, named_outputs
from export.job import SAMPLES_SEED, Job, in_range, job_call, ranking_of, sharded_of
from export.oracle import OracleCollection, StoredRows
from export.ranking_proof import Predict, PredictRanking, check_ranking
from export.tables import on_host
from export.tree import exchanged
from export.verify import END_TO_END_TOLERANCES, Difference, capture, check_tables, compare, model_outputs
from recsys.artifact import ROWS_NAME, LoadedArtifact, load_artifact, map_rows
from recsys.embedding import EmbeddingBagCollection
from recsys.errors import ExportError, VerificationError
from recsys.ranking import RankingBatch
from recsys.samples import Batch, random_batch
from recsys.sharding.device_rows import DeviceRows
from recsys.sharding.env import ShardingEnv
from recsys.signature import Signature


def float_outputs(job: Job) -> tuple[dict[str, Tensor], dict[str, list[Any]]]:
    """The float model's outputs for the samples, and those of its collections, call by call.

    Raises:
        ExportError: the model fails on the samples, or gives what cannot be served.
    """
    job.progress("float model", 0, 1)
    clean = replace(job.samples, values=in_range(job))
    model = exchanged(job.model, {})
    collections = {path: model.get_submodule(path) if path else model for path in job.collections}
    try:
        outputs, kept = capture(model, collections, job_call(job, clean))
    except Exception as error:  # the user's code can raise anything
        raise ExportError(f"model: forward failed on the samples: {type(error).__name__}: {error}") from error
    found = model_outputs(outputs)
    job.binding.casts_outputs = any(o.dtype != torch.float32 for o in named_outputs(outputs).values())
    return found, kept


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What was measured, by target.

    Attributes:
        differences: of its outputs to the float model.
        ranking: of the ranking form's outputs to the plain form's; empty where there is none.
        ran_on: where it ran.
    """

    differences: dict[str, dict[str, Difference]] = field(default_factory=dict)
    ranking: dict[str, dict[str, Difference]] = field(default_factory=dict)
    ran_on: dict[str, str] = field(default_factory=dict)


def verify(job: Job, work: Path, expected: dict[str, Tensor], from_floats: dict[str, list[Any]]) -> Verified:
    """Prove it, as ``export.verify`` and ``export.ranking_proof`` say.

    Args:
        job: the export.
        work: the directory that holds the artifact.
        expected: the float model's outputs.
        from_floats: those of its collections.

    Raises:
        VerificationError: says where the artifact is wrong.
    """
    _check_lookups(job, work, from_floats)
    implied = _implied_outputs(job, work)
    verified = Verified()
    tolerance = END_TO_END_TOLERANCES[job.dense_dtype]
    clean = replace(job.samples, values=in_range(job))
    for i, name in enumerate(job.stored.envs):
        job.progress("verify", i, len(job.stored.envs))
        target = _target(job, work, name)
        outputs = target.predict(job.samples)
        compare(outputs, implied, tolerance, "what the model makes of the stored rows")
        # The float model knows no ID policies: it is compared where none applies.
        if not torch.equal(clean.values, job.samples.values):
            outputs = target.predict(clean)
        verified.differences[name] = compare(outputs, expected, None, "the float model")
        verified.ran_on[name] = target.ran_on
        if job.signature.context:
            verified.ranking[name] = check_ranking(job, target.predict, target.predict_ranking)
    return verified


def _check_lookups(job: Job, work: Path, from_floats: dict[str, list[Any]]) -> None:
    # A step of its own: its mapping of the rows is let go before the next one counts in the process's memory, too.
    oracles = _oracles(job, work, torch.float32)
    samples = replace(job.samples, values=in_range(job))
    _, from_rows = capture(exchanged(job.model, oracles), oracles, job_call(job, samples))
    check_tables(oracles, from_rows, from_floats)


def _oracles(job: Job, work: Path, dtype: torch.dtype) -> dict[str, OracleCollection]:
    layout = job.stored.layout
    blob = map_rows(work / ROWS_NAME, layout, random_access=True)
    rows = StoredRows(layout=layout, blob=blob)
    return {
        path: OracleCollection(
            path,
            job.stored.tables[path],
            rows,
            job.stored.policies,
            isinstance(collection, EmbeddingBagCollection) and collection.is_weighted(),
            dtype,
        )
        for path, collection in job.collections.items()
    }


def _with_collections(job: Job, collections: Mapping[str, nn.Module]) -> nn.Module:
    """The model, its dense layers in the artifact's dtype, with other collections in place of its own."""
    if "" in collections:
        return collections[""]
    model = exchanged(job.model, {path: nn.Identity() for path in collections})
    if job.dense_dtype is not torch.float32:
        # Without the collections, so that no rows are copied.
        model = copy.deepcopy(model).to(job.dense_dtype)
    return exchanged(model, collections)


def _implied_outputs(job: Job, work: Path) -> dict[str, Tensor]:
    """What the model's own layers, in the artifact's dtype, make of the stored rows."""
    oracles = _oracles(job, work, job.dense_dtype)
    model = _with_collections(job, {**oracles, **job.managed.learned()})
    with torch.no_grad():
        return model_outputs(model(**job_call(job, job.samples, job.dense_dtype)))


@dataclass(frozen=True, kw_only=True)
class _Target:
    """A target's two forms, and where they run."""

    predict: Predict
    predict_ranking: PredictRanking
    ran_on: str


def _target(job: Job, work: Path, name: str) -> _Target:
    """A target. It has predicted for no rows and for one row."""
    env = job.stored.envs[name]
    if env.lacking():
        # No such device here: the same plan in host memory, not scripted.
        return _on_host(job, work, name, on_host(env))
    artifact = load_artifact(work, target=name, verify_checksums=False, random_access=True)
    for num_rows in (0, 1):
        _check_rows(artifact, job.signature, num_rows)
    return _Target(
        predict=lambda batch: artifact.forward(*batch.inputs()),
        predict_ranking=lambda batch: artifact.forward_ranking(*batch.inputs()),
        ran_on=name,
    )


def _check_rows(artifact: LoadedArtifact, signature: Signature, num_rows: int) -> None:
    batch = random_batch(signature, num_rows, torch.Generator().manual_seed(SAMPLES_SEED))
    outputs = artifact.forward(*batch.inputs())
    for output in signature.outputs:
        found = list(outputs[output.name].shape)
        if found != [num_rows, *output.shape]:
            raise VerificationError(
                f"output {output.name!r}: got shape {found} for {num_rows} rows, expected {[num_rows, *output.shape]}"
            )


def _on_host(job: Job, work: Path, name: str, env: ShardingEnv) -> _Target:
    layout = job.stored.layout
    blob = map_rows(work / ROWS_NAME, layout, random_access=True)
    ranks = [DeviceRows(device=device, layout=layout, rows=blob) for device in env.devices]
    sharded = sharded_of(job.collections, job.stored, name, ranks, job.dense_dtype)
    ranking = ranking_of(job, name, ranks, sharded)
    frozen = job.managed.frozen()
    plain, second = (
        ExportedModel(
            _with_collections(job, {**collections, **frozen}),
            job.binding,
            env.devices,
            job.dense_dtype,
            context,
        )
        for collections, context in ((sharded, ()), (ranking, job.signature.context))
    )

    def predict(batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            return plain.run(batch.dense, batch.lengths, batch.values, batch.weights)

    def predict_ranking(batch: RankingBatch) -> dict[str, Tensor]:
        context = Ids(batch.context_lengths, batch.context_values, batch.context_weights)
        rows = Ids(batch.lengths, batch.values, batch.weights)
        with torch.no_grad():
            return second.run_ranking(batch.dense, context, rows, batch.row_context)

    return _Target(
        predict=predict, predict_ranking=predict_ranking, ran_on="cpu, the same plan (no such device here)"
    )
