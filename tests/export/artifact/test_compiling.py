from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from export.artifact import compiling
from export.artifact.compiling import check_compiler, load_program
from export.config import ExportConfig
from recsys.errors import ExportError, ManifestError


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"graph_format": "onnx"}, "format: got 'onnx', expected torchscript or pt2 or both"),
        ({"pt2_isa": "avx2"}, "pt2_isa: got 'avx2', expected one of x86-64-v3, x86-64-v4"),
        ({"targets": (("cpu",), ("cuda:0",))}, r"for targets \['cuda:0'\], expected 'torchscript'"),
        ({"single_file": True}, "for a single file, expected 'torchscript'"),
    ],
)
def test_what_cannot_be_compiled_is_refused_before_work_starts(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ExportError, match=text):
        ExportConfig(**{"graph_format": "pt2", **options})


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ExportError, match=r"need the compiler 'g\+\+', which is not there: install g\+\+"):
        check_compiler(compiling.DEFAULT_ISA)
    ExportConfig(graph_format="torchscript")


def test_instructions_that_this_machine_lacks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    with pytest.raises(
        ExportError, match="but this processor lacks avx2, bmi2, f16c, fma3: the package could not"
    ):
        check_compiler("x86-64-v3")


def test_a_program_that_is_none_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "a.pt2").write_bytes(b"no zip archive")
    with pytest.raises(ManifestError, match=r"part 'a.pt2': not readable as an ExportedProgram"):
        load_program(tmp_path / "a.pt2")
