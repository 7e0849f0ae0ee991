"""Samples whose sparse inputs are texts, beside the same in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from recsys.base.hashing import hash_texts
from recsys.inputs.signature import Signature
from serve.client.packing import build_request
from serve.engine.reference.protocols.tensors import Tensor
from serve.protocols.open_inference import pack_texts
from serve.wire import open_inference_pb2 as kserve
from serve.wire import predict_pb2 as wire
from tests.support.serve.messages.cases import Sample
from tests.support.serve.messages.foreign import tensors

Texts = dict[str, list[list[str]]]
_LETTERS = np.array(list("abcdef0123456789 -/é日😀\\'\"\n"))


def with_texts(signature: Signature, sample: Sample, rng: np.random.Generator) -> tuple[Sample, Texts]:
    """The sample with random texts' IDs in hashed inputs, and all sparse inputs as texts."""
    sparse, texts = dict(sample.sparse), Texts()
    for use in signature.sparse:
        bags = sample.sparse[use.name]
        if use.strings:
            texts[use.name] = [[_text(rng) for _ in bag] for bag in bags]
            sparse[use.name] = [
                hash_texts([text.encode() for text in bag]).tolist() for bag in texts[use.name]
            ]
        else:
            texts[use.name] = [[str(number) for number in bag] for bag in bags]
    return replace(sample, sparse=sparse), texts


def _text(rng: np.random.Generator) -> str:
    # Every branch of the hash: it reads 32, 8, 4 and 1 bytes at a time.
    return "".join(rng.choice(_LETTERS, int(rng.choice([1, 3, 4, 8, 13, 31, 32, 33, 100]))))


def text_request(sample: Sample, texts: Texts) -> wire.PredictRequest:
    """The sample over ``recsys.v1``."""
    return build_request(sample.dense, texts, sample.weights)


def text_tensors(signature: Signature, sample: Sample, texts: Texts) -> list[Tensor]:
    """The sample in the jagged form; BYTES tensors have their texts one by one."""
    made = []
    for one in tensors(signature, sample):
        name, _, part = one.name.rpartition(".")
        if part == "values":
            values = [text.encode() for bag in texts[name] for text in bag]
            made.append(Tensor(one.name, "BYTES", (len(values),), b"", values))
        else:
            made.append(one)
    return made


def packed(made: Sequence[Tensor]) -> list[Tensor]:
    """The tensors with texts as Triton packs them."""
    return [
        replace(one, data=pack_texts(one.texts), texts=()) if one.datatype == "BYTES" else one for one in made
    ]


_FIELDS = {
    "FP32": ("fp32_contents", "<f4"),
    "INT64": ("int64_contents", "<i8"),
    "INT32": ("int_contents", "<i4"),
}


def typed_message(made: Sequence[Tensor], **fields: object) -> kserve.ModelInferRequest:
    """The tensors as numbers and texts instead of bytes."""
    message = kserve.ModelInferRequest(**fields)
    for one in made:
        contents = kserve.InferTensorContents()
        if one.datatype == "BYTES":
            contents.bytes_contents.extend(one.texts)
        elif one.datatype in _FIELDS:
            field, dtype = _FIELDS[one.datatype]
            getattr(contents, field).extend(np.frombuffer(one.data, dtype).tolist())
        message.inputs.add(name=one.name, datatype=one.datatype, shape=one.shape, contents=contents)
    return message
