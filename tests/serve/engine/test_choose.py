"""Which engine answers: what was asked for, or what can be had."""

from __future__ import annotations

import logging
import sysconfig
from pathlib import Path

import pytest

from recsys.base.native_module import NotBuiltError
from serve.engine import native
from serve.engine.choose import choose_engine
from serve.engine.native import load_binding
from serve.engine.reference.engine import ReferenceEngine
from serve.errors import EngineError


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There is no binding."""
    monkeypatch.setattr(native, "load_binding", lambda: load_binding(tmp_path))


def test_the_reference_engine_is_had_by_name() -> None:
    assert choose_engine("reference") is ReferenceEngine


@pytest.mark.usefixtures("unbuilt")
def test_auto_falls_back_with_one_line_that_says_why_and_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert choose_engine("auto") is ReferenceEngine
    (record,) = caplog.records
    assert "reference engine" in record.getMessage()
    assert "make native" in record.getMessage()


@pytest.mark.usefixtures("unbuilt")
def test_the_native_engine_by_name_is_an_error_where_it_cannot_be_had() -> None:
    with pytest.raises(EngineError, match="not built; `make native`"):
        choose_engine("native")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", "torch of an unknown version"),
        (b'recsys-native-build {"torch": "1.2.0", "fbgemm_gpu": "1.8.0"}\0', "torch 1.2.0"),
        (b'recsys-native-build {"torch": 3\0', "torch of an unknown version"),
    ],
    ids=["none", "other", "damaged"],
)
def test_a_binding_for_another_torch_is_never_loaded(tmp_path: Path, text: bytes, expected: str) -> None:
    name = f"_engine{sysconfig.get_config_var('EXT_SUFFIX')}"
    (tmp_path / name).write_bytes(b"\x7fELF" + text + bytes(100))
    with pytest.raises(NotBuiltError, match=f"built for {expected}, and .* is installed; `make native`"):
        load_binding(tmp_path)
