"""Code blocks of the documents: they compile, their imports exist, data can be parsed, paths exist."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import PAGES, ROOT, Block, blocks, code

BLOCKS = [block for page in PAGES for block in blocks(page)]
_OURS = ("recsys", "export", "serve")
_PATH = re.compile(
    r"(?!recsys/v1/)(?:recsys|export|serve|tests|benchmarks|examples|cpp_client|deploy|docs|protos)/[\w./-]+"
)


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def exists(module: str, name: str) -> bool:
    """Whether a module has a name, or a package a module of that name."""
    if hasattr(importlib.import_module(module), name):
        return True
    return importlib.util.find_spec(f"{module}.{name}") is not None


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_in_the_text_exist(page: Path) -> None:
    paths = {text for text in code(page) if _PATH.fullmatch(text)}
    assert not sorted(path for path in paths if not (ROOT / path).exists())
