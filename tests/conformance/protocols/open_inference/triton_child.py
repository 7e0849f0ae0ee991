"""What an unmodified tritonclient gets from a server: run as a process of its own, prints JSON.

    python triton_child.py ADDRESS < CALLS.json

Triton's generated code and ours register the same names, so that no process can hold both. Each call is an object:
``method`` of Triton's client, ``arguments``, ``keywords``; inferences have ``inputs`` (texts as they are, numbers in
Base64) and ``outputs`` beside them, and ``how``: "sync", "async", "aio" or "stream".
"""

from __future__ import annotations

import asyncio
import base64
import json
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

DTYPES: dict[str, np.dtype[Any]] = {
    "FP32": np.dtype("<f4"),
    "INT64": np.dtype("<i8"),
    "INT32": np.dtype("<i4"),
}
_PATIENCE_S = 120


def inputs_of(given: list[dict[str, Any]]) -> list[Any]:
    made = []
    for one in given:
        if one["datatype"] == "BYTES":
            array = np.array(one["data"], np.object_).reshape(one["shape"])
        else:
            data = base64.b64decode(one["data"])
            array = np.frombuffer(data, DTYPES[one["datatype"]]).reshape(one["shape"])
        made.append(triton.InferInput(one["name"], list(array.shape), np_to_triton_dtype(array.dtype)))
        made[-1].set_data_from_numpy(array)
    return made


def answer_of(result: Any) -> dict[str, Any]:
    """The answer, its values as bytes."""
    response = result.get_response()
    arrays = {output.name: result.as_numpy(output.name) for output in response.outputs}
    return {
        "id": response.id,
        "model": response.model_name,
        "version": response.model_version,
        "outputs": {
            name: [list(array.shape), base64.b64encode(array.tobytes()).decode()]
            for name, array in arrays.items()
        },
    }


def infer(client: Any, address: str, call: dict[str, Any]) -> Any:
    inputs, keywords = inputs_of(call["inputs"]), dict(call.get("keywords", {}))
    model = keywords.pop("model_name", "")
    if call.get("outputs"):
        keywords["outputs"] = [triton.InferRequestedOutput(name) for name in call["outputs"]]
    how = call.get("how", "sync")
    if how == "aio":
        return asyncio.run(infer_aio(address, model, inputs, keywords))
    if how == "sync":
        return answer_of(client.infer(model, inputs, **keywords))
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()

    def take(result: Any, error: Any) -> None:
        done.put((result, error))

    if how == "stream":
        client.start_stream(take)
        client.async_stream_infer(model, inputs, **keywords)
    else:
        client.async_infer(model, inputs, take, **keywords)
    result, error = done.get(timeout=_PATIENCE_S)
    if how == "stream":
        client.stop_stream()
    if error is not None:
        raise error
    return answer_of(result)


async def infer_aio(address: str, model: str, inputs: list[Any], keywords: dict[str, Any]) -> Any:
    async with triton_aio.InferenceServerClient(address) as client:
        return answer_of(await client.infer(model, inputs, **keywords))


def result_of(client: Any, address: str, call: dict[str, Any]) -> dict[str, Any]:
    try:
        if call["method"] == "infer":
            return {"result": infer(client, address, call)}
        method = getattr(client, call["method"])
        return {"result": method(*call.get("arguments", ()), **call.get("keywords", {}))}
    except InferenceServerException as error:
        return {"error": [error.status(), error.message()]}


if __name__ == "__main__":
    with triton.InferenceServerClient(sys.argv[1]) as one_client:
        print(json.dumps([result_of(one_client, sys.argv[1], call) for call in json.load(sys.stdin)]))
