"""The runtime library as programs outside the project find it: installed, and the example built against it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from recsys.inputs.signature import Signature
from serve.engine.reference.raw_request import RawDense, RawRequest, RawSparse
from tests.conformance.support.artifacts import export_small
from tests.native.models.test_model import python_answer
from tests.native.tool import BUILD, needs_tool

pytestmark = needs_tool
EXAMPLE = Path(__file__).parents[2] / "cpp_client" / "examples" / "predict.cpp"
PROJECT = """
cmake_minimum_required(VERSION 3.18)
project(outside LANGUAGES CXX)
find_package(recsys 0.2 REQUIRED COMPONENTS recsys static)
foreach(library recsys static)
  add_executable(predict_${library} predict.cpp)
  target_link_libraries(predict_${library} PRIVATE recsys::${library})
endforeach()
"""


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [("client", ["127.0.0.1:1"], "UNAVAILABLE"), ("predict", [], "usage: "), ("server", [], "usage: ")],
)
def test_make_native_builds_the_examples(name: str, arguments: list[str], text: str) -> None:
    command = [BUILD / f"example_{name}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode in (1, 2)
    assert text in done.stderr + done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_example_builds_against_an_installed_library_and_predicts(tmp_path: Path) -> None:
    run("cmake", "--build", BUILD, "-j", "1", "--target", "recsys", "recsys_static")
    run("cmake", "--install", BUILD, "--component", "recsys", "--prefix", tmp_path / "prefix")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "CMakeLists.txt").write_text(PROJECT)
    (outside / "predict.cpp").write_text(EXAMPLE.read_text())
    run("cmake", "-S", outside, "-B", outside / "build", f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}")
    run("cmake", "--build", outside / "build")
    small = export_small(tmp_path / "small")
    expected = python_answer(small.model, [_example_request(small.signature)])
    for library in ("recsys", "static"):
        lines = run(outside / "build" / f"predict_{library}", small.path).splitlines()
        assert [line.split(":")[0] for line in lines] == [output.name for output in small.signature.outputs]
        for line, values in zip(lines, expected, strict=True):
            found = [float(number) for number in line.split(":")[1].split()]
            np.testing.assert_allclose(found, np.frombuffer(values, "<f4"), rtol=1e-5)
    failed = subprocess.run(
        [outside / "build" / "predict_recsys", tmp_path / "nothing"],
        capture_output=True,
        text=True,
        check=False,
    )
    text = "artifact: got 'nothing', which does not exist; expected a folder or file that recsys-export wrote"
    assert (failed.returncode, failed.stderr) == (1, f"predict: {text}\n")


def _example_request(signature: Signature) -> RawRequest:
    """What the example makes up: two rows, one ID in each."""
    dense = [RawDense(d.name, np.full((2, d.width), 0.5, "<f4").tobytes()) for d in signature.dense]
    lengths, ids = np.ones(2, "<i4").tobytes(), np.arange(2, dtype="<i8").tobytes()
    weights = np.ones(2, "<f4").tobytes()
    sparse = [RawSparse(s.name, lengths, ids, weights if s.weighted else b"") for s in signature.sparse]
    return RawRequest(num_rows=2, dense=dense, sparse=sparse)
