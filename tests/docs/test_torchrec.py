"""The worked examples of the page for those who come from TorchRec."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from recsys.artifact.parts import read_manifest
from recsys.as_torchrec.rewrite.files import rewrite_text
from recsys.as_torchrec.table import load_table
from tests.docs.pages import ROOT, Block, blocks
from tests.support.fork_server import PROGRAMS, TORCHREC, run_python

PAGE = ROOT / "docs" / "train" / "torchrec.md"
BLOCKS = list(blocks(PAGE))


def block(language: str, part: str) -> Block:
    (found,) = (each for each in BLOCKS if each.language == language and part in each.text)
    return found


def run(folder: Path, *words: str, imported: tuple[str, ...] = PROGRAMS) -> str:
    done = run_python(*words, cwd=folder, imported=imported)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_names_are_installed(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(block("python", "install()").text)
    assert run(tmp_path, "example.py") == "torch.Size([2, 8])\n"


def test_imports_are_rewritten_as_shown() -> None:
    lines = block("diff", "torchrec").text.splitlines(keepends=True)
    before, after = (
        "".join(line[1:] or "\n" for line in lines if line[0] in kept) for kept in (" -\n", " +\n")
    )
    assert rewrite_text(before, load_table()) == (after, ())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model's module and a state dict of it."""
    folder = tmp_path_factory.mktemp("clicks")
    source = block("python", "class Clicks").text
    (folder / "clicks.py").write_text(source)
    code = "import clicks, torch; torch.save(clicks.Clicks().state_dict(), 'state.pt')"
    (folder / "save.py").write_text(code)
    run(folder, "-m", "recsys.as_torchrec", "save.py")
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """The same in a folder of the test's own."""
    return shutil.copytree(saved, tmp_path, dirs_exist_ok=True)


def words(start: str) -> list[str]:
    """Return a command of the page, without the program."""
    line = next(line for each in BLOCKS for line in each.text.splitlines() if line.startswith(start))
    return line.split()[1:]


@pytest.mark.slow
def test_a_model_is_exported_with_the_names(folder: Path) -> None:
    run(folder, *words("python -m recsys.as_torchrec -m export"))
    assert (folder / "clicks.artifact").exists()


@pytest.mark.slow
@pytest.mark.peer
def test_a_model_is_exported_with_torchrec_itself(folder: Path) -> None:
    pytest.importorskip("torchrec", reason="torchrec is not installed (group: peer)")
    words_of_export = words("recsys-export state.pt --factory clicks:Clicks")
    run(folder, "-m", "export", *words_of_export, imported=(*PROGRAMS, *TORCHREC))
    assert (folder / "clicks.artifact").exists()


@pytest.mark.slow
def test_a_model_of_dicts_is_exported_with_its_own_state(tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text(block("python", "class Served").text)
    code = "import served, torch; torch.save(served.Ranker().state_dict(), 'state.pt')"
    (tmp_path / "save.py").write_text(code)
    run(tmp_path, "-m", "recsys.as_torchrec", "save.py")
    run(
        tmp_path,
        "-m",
        "recsys.as_torchrec",
        "-m",
        "export",
        *words("recsys-export state.pt --factory served"),
        "--json",
    )
    manifest = read_manifest(tmp_path / "state.artifact")
    assert [(one.name, one.width) for one in manifest.signature.dense] == [("numbers", 3)]
