"""The model's signature as a message."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from google.protobuf.message import Message

from recsys.inputs.signature import IdPolicy, Signature, SparseInput
from serve.client.packing import build_request
from serve.config.models import BatchLimits
from serve.engine.interface import ModelInfo, Servable
from serve.wire import predict_pb2 as wire

_POLICIES = {
    IdPolicy.REJECT: wire.ID_POLICY_REJECT,
    IdPolicy.HASH: wire.ID_POLICY_HASH,
    IdPolicy.ZERO: wire.ID_POLICY_ZERO,
    IdPolicy.MAPPED: wire.ID_POLICY_MAPPED,
    IdPolicy.FMIX64: wire.ID_POLICY_FMIX64,
}
_POOLINGS = {"sum": wire.POOLING_SUM, "mean": wire.POOLING_MEAN, "none": wire.POOLING_NONE}


# Messages that are kept for a version: by number of examples, and deltas.
_MAX_MESSAGES = 16
MessageT = TypeVar("MessageT", bound=Message)


class PerServable(Generic[MessageT]):
    """Messages about loaded versions, made once for each: clients may ask for them as often as they like."""

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[Servable, dict[Hashable, MessageT]] = WeakKeyDictionary()

    def get(self, servable: Servable, key: Hashable, make: Callable[[], MessageT]) -> MessageT:
        """Return the message of a version, which the caller must not change.

        Args:
            servable: the version.
            key: what the message depends on beside the version's constants.
            make: makes the message.
        """
        made = self._made.setdefault(servable, {})
        if key not in made:
            if len(made) == _MAX_MESSAGES:
                made.clear()
            made[key] = make()
        return made[key]


def model_metadata(
    signature: Signature, info: ModelInfo, *, limits: BatchLimits, max_message_bytes: int
) -> wire.ModelMetadata:
    """Return the metadata that a client needs to build a valid request, without examples."""
    return wire.ModelMetadata(
        model=info.name,
        version=info.version,
        target=info.target,
        dense=[
            wire.DenseSignature(name=d.name, width=d.width, missing=d.missing, columns=d.columns)
            for d in signature.dense
        ],
        sparse=[_sparse(signature, s) for s in signature.sparse],
        outputs=[
            wire.OutputSignature(name=o.name, shape=o.shape, dtype=o.dtype, dims=o.dims(-1))
            for o in signature.outputs
        ],
        limits=wire.RequestLimits(
            max_rows=limits.max_request_rows,
            max_ids=limits.max_request_ids,
            max_message_bytes=max_message_bytes,
        ),
        artifact=wire.ArtifactVersions(
            format=info.format_version,
            torch=info.torch_version,
            fbgemm=info.fbgemm_version,
            digest=info.digest,
        ),
        context=signature.context,
    )


def servable_metadata(
    servable: Servable, max_message_bytes: int, num_examples: int = 0
) -> wire.ModelMetadata:
    """Return the metadata of a loaded version, with its deltas and at most so many rows of its examples."""
    message = model_metadata(
        servable.signature,
        servable.info,
        limits=servable.settings.limits,
        max_message_bytes=max_message_bytes,
    )
    message.deltas.extend(servable.deltas)
    if num_examples > 0 and servable.info.examples:
        message.examples.CopyFrom(_examples(servable.info, num_examples))
    return message


def _examples(info: ModelInfo, num_rows: int) -> wire.PredictRequest:
    """Return the first rows of a model's examples as a request."""
    first = {
        part: {name: rows[:num_rows] for name, rows in inputs.items()}
        for part, inputs in info.examples.items()
    }
    return build_request(
        first.get("dense", {}), first.get("sparse", {}), first.get("weights"), model=info.name
    )


def _sparse(signature: Signature, sparse: SparseInput) -> wire.SparseSignature:
    return wire.SparseSignature(
        name=sparse.name,
        pooling=_POOLINGS[sparse.pooling],
        weighted=sparse.weighted,
        tables=[
            wire.TableUse(
                name=signature.table_names[t.name],
                num_embeddings=t.num_embeddings,
                id_policy=_POLICIES[t.id_policy],
            )
            for t in sparse.tables
        ],
        id_limit=sparse.id_limit,
        strings=sparse.strings,
        num_ids=sparse.num_ids,
        same_lengths_as=sparse.same_lengths_as,
        separator=sparse.separator,
        max_ids=sparse.max_ids,
    )
