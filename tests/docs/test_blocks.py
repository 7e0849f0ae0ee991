"""Code blocks of the documents: they compile, their imports exist, and the README's run and print what it says."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import io
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import PAGES, ROOT, Block, blocks, code
from tests.support.serve.spawned import spawned

BLOCKS = [block for page in PAGES for block in blocks(page)]
_OURS = ("recsys", "export", "serve")
_LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
_PATH = re.compile(
    r"(?!recsys/v1/)(?:recsys|export|serve|tests|benchmarks|examples|cpp_client|deploy|docs|protos)/[\w./-]+"
)


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def readme(*words: str) -> str:
    """Return the one Python block of the README that has these words."""
    found = [block for block in blocks(ROOT / "README.md") if block.language == "python"]
    (text,) = [block.text for block in found if all(word in block.text for word in words)]
    return text


def printed(text: str) -> list[str]:
    """Run a block; return the lines that it prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(text, "README.md", "exec"), {"__name__": "readme"})
    return output.getvalue().splitlines()


def exists(module: str, name: str) -> bool:
    """Whether a module has a name, or a package a module of that name."""
    if hasattr(importlib.import_module(module), name):
        return True
    return importlib.util.find_spec(f"{module}.{name}") is not None


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The README's model behind a server, with fewer rows of training and with a ranking graph."""
    folder = tmp_path_factory.mktemp("readme")

    def run(module: str, *words: str | Path) -> None:
        command = [sys.executable, "-m", module, *map(str, words)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=240)

    run("recsys.train", "--data", "synthetic", "--limit-rows", "4000", "--out", folder / "model.pt")
    options = ("--dtype", "int8", "--devices", "cpu,cpu", "--context", "user,recent_items")
    run("export", folder / "model.pt", *options, "--out", folder / "model.artifact")
    command = [sys.executable, "-m", "serve.app.cli", str(folder / "model.artifact")]
    command += ["--port", "0", "--no-metrics", "--json"]
    with spawned(command, folder / "log") as server:
        yield server.address


@pytest.mark.parametrize("block", of("python"), ids=lambda block: block.place)
def test_python_compiles_and_what_it_imports_exists(block: Block) -> None:
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] in _OURS]
            assert all(importlib.import_module(name) for name in names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in _OURS:
            missing = [alias.name for alias in node.names if not exists(node.module or "", alias.name)]
            assert not missing, f"{block.place}: {node.module} has no {', '.join(missing)}"


@pytest.mark.parametrize("block", of("json", "toml", "yaml"), ids=lambda block: block.place)
def test_data_can_be_parsed(block: Block) -> None:
    parse: dict[str, Any] = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}
    assert parse[block.language](block.text)


def test_the_readmes_collections_print_what_it_says() -> None:
    text = readme("QuantEmbeddingBagCollection")
    assert printed(text) == re.findall(r"print\(.*\)  # (.*)", text)


def test_the_readmes_client_prints_scores(served: str) -> None:
    text = readme("from serve.client import").replace("127.0.0.1:8500", served)
    *_, one, two = printed(text)
    scores = [json.loads(re.sub(r"(?<=\d) +", ", ", line)) for line in (one, two)]
    assert [len(line) for line in scores] == [1, 2]
    assert all(0 < score < 1 for line in scores for score in line)


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent == ROOT], ids=lambda page: page.name)
def test_links_of_the_repositorys_pages_lead_to_files(page: Path) -> None:
    links = [link for link in _LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert not [link for link in links if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_in_the_text_exist(page: Path) -> None:
    paths = {text for text in code(page) if _PATH.fullmatch(text)}
    assert not sorted(path for path in paths if not (ROOT / path).exists())
