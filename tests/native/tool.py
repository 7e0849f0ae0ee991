"""The native runtime library at the end of a pipe (cpp_client/tests/tools/predict_tool.cpp)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from recsys import errors
from recsys.inputs.signature import Signature
from serve import errors as serve_errors
from serve.engine.reference.raw_request import RawRequestLike
from tests.cases.fields import field_of

#: Where `make native` builds, unless the environment says otherwise.
BUILD = Path(os.environ.get("RECSYS_NATIVE_BUILD", Path(__file__).parents[2] / "build" / "native"))
PROGRAM = BUILD / "recsys-predict-tool"

needs_tool = pytest.mark.skipif(
    not PROGRAM.is_file(),
    reason=f"no {PROGRAM.name} in the native build ({BUILD.name}): `make native` builds it, RECSYS_NATIVE_BUILD tells "
    "where else it lies",
)


class NativeError(Exception):
    """An error of the library.

    Attributes:
        kind: the Python class that stands for it.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.kind: Any = getattr(errors, name, None) or getattr(serve_errors, name, None) or name


class NativeModel:
    """A process that holds one model at a time."""

    def __init__(self, *, prefix: Sequence[str] = (), **environment: str) -> None:
        self._process = subprocess.Popen(
            [*prefix, PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def call(self, command: str, **arguments: Any) -> Any:
        """What a command answers.

        Raises:
            NativeError: the library's error.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the program ended with {self._process.wait()}"
        answer = json.loads(line)
        if "error" in answer:
            raise NativeError(answer["error"], answer["text"])
        return answer["ok"]

    def open(self, path: Path, **options: Any) -> Any:
        """Open an artifact; the description."""
        return self.call("open", path=str(path), **options)

    def predict(
        self, signature: Signature, requests: Sequence[RawRequestLike]
    ) -> dict[str, npt.NDArray[Any]]:
        """One batch of the requests."""
        found = self.call("predict", requests=[as_json(request) for request in requests])
        num_rows = sum(request.num_rows for request in requests)
        return outputs_of(signature, found, num_rows)

    def predict_one(self, signature: Signature, request: RawRequestLike) -> dict[str, npt.NDArray[Any]]:
        """A request on its own, checked and put together within the library."""
        found = self.call("predict_one", request=as_json(request))
        return outputs_of(signature, found, request.num_rows)

    def resident_kib(self) -> int:
        """What of the process lies in memory."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])

    def close(self) -> int:
        """End the process; its exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        code = self._process.wait()
        self._process.stdout.close()
        return code


def outputs_of(signature: Signature, found: dict[str, str], num_rows: int) -> dict[str, npt.NDArray[Any]]:
    """The program's answer as arrays."""
    return {
        output.name: np.frombuffer(
            bytes.fromhex(found[output.name]), "<i8" if output.is_integer else "<f4"
        ).reshape(output.dims(num_rows))
        for output in signature.outputs
    }


def as_json(request: RawRequestLike) -> dict[str, Any]:
    """A request as the program reads it."""

    def dense(inputs: Any) -> list[dict[str, str]]:
        return [{"name": i.name, "values": i.values.hex()} for i in inputs]

    def sparse(inputs: Any) -> list[dict[str, str]]:
        return [
            {
                "name": i.name,
                **{key: getattr(i, key).hex() for key in ("lengths", "values", "weights")},
                "strings": [text.hex() for text in i.strings],
            }
            for i in inputs
        ]

    return {
        "num_rows": request.num_rows,
        "dense": dense(request.dense),
        "sparse": sparse(request.sparse),
        "context_dense": dense(request.context_dense),
        "context_sparse": sparse(request.context_sparse),
    }


def python_error(call: Callable[[], object]) -> tuple[type[Exception], str]:
    with pytest.raises(Exception) as caught:
        call()
    return caught.type, str(caught.value)


def assert_same_error(
    native: Callable[[], object], python: Callable[[], object], *, same_field: bool = True
) -> None:
    """Assert that both raise errors of one kind, about one field. The words may differ."""
    kind, text = python_error(python)
    with pytest.raises(NativeError) as caught:
        native()
    assert caught.value.kind is kind
    if same_field:
        assert field_of(str(caught.value)) == field_of(text)
