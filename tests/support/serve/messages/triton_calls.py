"""What an unmodified tritonclient gets from a server: run as a process of its own, prints JSON.

    python triton_calls.py inference|admin ADDRESS [TOKEN] < SAMPLE.json

Triton's generated code and ours register the same names, so that no process can hold both.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

DTYPES = {"FP32": np.float32, "INT64": np.int64, "INT32": np.int32}
MODEL = "small"


def make_inputs(given: list[dict[str, Any]]) -> list[Any]:
    made = []
    for one in given:
        array = np.array(one["data"], DTYPES[one["datatype"]]).reshape(one["shape"])
        made.append(triton.InferInput(one["name"], list(array.shape), np_to_triton_dtype(array.dtype)))
        made[-1].set_data_from_numpy(array)
    return made


def result_of(result: Any, names: list[str]) -> dict[str, Any]:
    return {name: result.as_numpy(name).tolist() for name in names}


def error_of(call: Any, *args: Any, **kwargs: Any) -> list[str]:
    try:
        call(*args, **kwargs)
    except InferenceServerException as error:
        return [error.status(), error.message()]
    return ["OK", ""]


def inference(address: str, sample: dict[str, Any]) -> dict[str, Any]:
    inputs, names = make_inputs(sample["inputs"]), sample["outputs"]
    got: dict[str, Any] = {}
    with triton.InferenceServerClient(address) as client:
        got["live"] = client.is_server_live()
        got["ready"] = client.is_server_ready()
        got["model_ready"] = [
            client.is_model_ready(MODEL),
            client.is_model_ready(MODEL, "7"),
            client.is_model_ready(MODEL, "8"),
            client.is_model_ready("other"),
        ]
        got["server"] = client.get_server_metadata(as_json=True)
        got["model"] = client.get_model_metadata(MODEL, as_json=True)
        got["config"] = client.get_model_config(MODEL, as_json=True)["config"]
        got["index"] = client.get_model_repository_index(as_json=True)["models"]
        result = client.infer(MODEL, inputs, request_id="first")
        got["infer"] = result_of(result, names)
        got["id"] = result.get_response().id
        result = client.infer(
            MODEL,
            inputs,
            "7",
            outputs=[triton.InferRequestedOutput(names[-1])],
            priority=1,
            timeout=60_000_000,
        )
        got["one_output"] = [output.name for output in result.get_response().outputs]
        got["with_client_timeout"] = result_of(client.infer("", inputs, client_timeout=60), names)
        done: queue.Queue[Any] = queue.Queue()
        client.async_infer(MODEL, inputs, lambda result, error: done.put((result, error)))
        result, error = done.get(timeout=60)
        got["async"] = result_of(result, names) if error is None else str(error)
        got["stream"] = stream(client, inputs, names)
        got["errors"] = {
            "unknown model": error_of(client.infer, "other", inputs),
            "unknown version": error_of(client.infer, MODEL, inputs, "8"),
            "missing input": error_of(client.infer, MODEL, inputs[1:]),
            "unknown output": error_of(
                client.infer, MODEL, inputs, outputs=[triton.InferRequestedOutput("x")]
            ),
            "classification": error_of(
                client.infer, MODEL, inputs, outputs=[triton.InferRequestedOutput(names[0], class_count=2)]
            ),
            "priority": error_of(client.infer, MODEL, inputs, priority=4),
            "sequence": error_of(client.infer, MODEL, inputs, sequence_id=5),
            "load": error_of(client.load_model, MODEL),
            "unload": error_of(client.unload_model, MODEL),
            "metadata": error_of(client.get_model_metadata, "other"),
            "statistics": error_of(client.get_inference_statistics, "other"),
            "shared memory": error_of(client.get_system_shared_memory_status),
        }
        got["statistics"] = client.get_inference_statistics(MODEL, as_json=True)["model_stats"]
        got["all_statistics"] = len(client.get_inference_statistics(as_json=True)["model_stats"])
    got["aio"] = asyncio.run(aio(address, inputs, names))
    return got


def stream(client: Any, inputs: list[Any], names: list[str]) -> list[Any]:
    """Three requests on a stream; the second is wrong."""
    done: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: done.put((result, error)))
    client.async_stream_infer(MODEL, inputs, request_id="a", enable_empty_final_response=True)
    client.async_stream_infer(MODEL, inputs[1:], request_id="b")
    client.async_stream_infer(MODEL, inputs, request_id="c")
    got: list[Any] = []
    for _ in range(3):
        result, error = done.get(timeout=60)
        if error:
            got.append(error.message())
            continue
        response = result.get_response()
        assert response.parameters["triton_final_response"].bool_param
        got.append([response.id, result_of(result, names)])
    client.stop_stream()
    return got


async def aio(address: str, inputs: list[Any], names: list[str]) -> Any:
    async with triton_aio.InferenceServerClient(address) as client:
        results = await asyncio.gather(*(client.infer(MODEL, inputs) for _ in range(8)))
        return [result_of(result, names) for result in results]


def admin(address: str, sample: dict[str, Any], token: str) -> dict[str, Any]:
    inputs, names = make_inputs(sample["inputs"]), sample["outputs"]
    headers = {"authorization": f"Bearer {token}"}
    got: dict[str, Any] = {}
    with triton.InferenceServerClient(address) as client:

        def index() -> list[dict[str, str]]:
            return client.get_model_repository_index(headers=headers, as_json=True)["models"]

        got["no token"] = error_of(client.load_model, MODEL)[0]
        got["before"] = index()
        got["config"] = error_of(client.load_model, MODEL, headers=headers, config="{}")
        got["unknown"] = error_of(client.load_model, "other", headers=headers)
        client.unload_model(MODEL, headers=headers)
        got["unloaded"] = index()
        got["unloaded ready"] = client.is_model_ready(MODEL, headers=headers)
        got["unloaded infer"] = error_of(client.infer, MODEL, inputs, headers=headers)[0]
        client.load_model(MODEL, headers=headers)
        got["loaded"] = index()
        got["loaded ready"] = client.is_model_ready(MODEL, headers=headers)
        got["infer"] = result_of(client.infer(MODEL, inputs, headers=headers), names)
    return got


if __name__ == "__main__":
    given = json.load(sys.stdin)
    what, where, *rest = sys.argv[1:]
    print(json.dumps(inference(where, given) if what == "inference" else admin(where, given, *rest)))
