"""The generated code in the tree is what the protocol says today."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import serve.wire

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def generator() -> ModuleType:
    pytest.importorskip("grpc_tools", reason="the protocol compiler is in the group 'dev'")
    spec = importlib.util.spec_from_file_location("protos_generate", ROOT / "protos" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_code_is_current(generator: ModuleType, tmp_path: Path) -> None:
    made = generator.generate(tmp_path)
    committed = Path(serve.wire.__file__).parent
    assert sorted(path.name for path in made) == sorted(
        path.name for path in committed.glob("*_pb2*.py*") if path.suffix in (".py", ".pyi")
    )
    for path in made:
        assert path.read_text() == (committed / path.name).read_text(), f"{path.name}: run make protos"


def test_generated_code_keeps_out_of_the_library() -> None:
    from serve.wire import predict_pb2, predict_pb2_grpc

    assert predict_pb2.DESCRIPTOR.name == "recsys/v1/predict.proto"
    assert predict_pb2.DESCRIPTOR.package == "recsys.v1"
    assert predict_pb2_grpc.PredictionServiceStub.__module__ == "serve.wire.predict_pb2_grpc"
    assert "recsys.v1" not in sys.modules
