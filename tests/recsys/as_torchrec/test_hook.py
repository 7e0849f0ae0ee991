"""The import hook: names are those of the table, imported on access; what is missing says why."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import recsys
from recsys.as_torchrec import hook, install, uninstall
from recsys.as_torchrec.table import Table, read_table

TABLE = """
["torchrec"]
floor = "math:floor"
gone = { left_out = "it needs a GPU" }

["torchrec.sub.module"]
ceil = "math:ceil"
module = "math:floor"
broken = "recsys.no_such_module:name"

["torchrec.sub"]
module = "math:trunc"

["torchrec.old"]
"*" = { left_out = "nobody uses it" }

["torchrec.old.kept"]
floor = "math:floor"

["torchrec.half"]
only = { left_out = "it is internal" }
"""


@pytest.fixture
def table(tmp_path: Path) -> Table:
    (tmp_path / "a.toml").write_text(TABLE)
    return read_table(tmp_path)


@pytest.fixture
def installed(table: Table, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The hook with the small table, also where the genuine package is imported in this process."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchrec"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(hook, "load_table", lambda: table)
    install()
    yield
    uninstall()


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(code, names)
    return names


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "code",
    [
        "import torchrec; got = torchrec.floor",
        "import torchrec as t; got = t.old.kept.floor",
        "import torchrec.old.kept as k; got = k.floor",
        "from torchrec import floor as got",
        "from torchrec.old.kept import floor as got",
        "from torchrec import old; got = old.kept.floor",
        "from torchrec import *; got = floor",
        "from torchrec.old.kept import *; got = floor",
    ],
)
def test_every_form_of_import_works(code: str) -> None:
    assert run(code)["got"] is __import__("math").floor


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import torchrec.old", None),
        ("from torchrec import flor", r"torchrec has no flor that is known here; did you mean floor\?"),
        ("from torchrec import ceil", r"torchrec has no ceil; it is in torchrec\.sub\.module"),
        ("import torchrec.sup", r"torchrec has no sup that is known here; did you mean sub\?"),
        ("from torchrec.sub.module import broken", r"No module named 'recsys\.no_such_module'"),
    ],
)
def test_what_is_missing_says_why(code: str, message: str | None) -> None:
    if message is None:
        run(code)
        return
    with pytest.raises(ImportError, match=message):
        run(code)


@pytest.mark.usefixtures("installed")
def test_an_attribute_that_is_missing_says_why() -> None:
    import torchrec

    assert not hasattr(torchrec, "gone")
    assert getattr(torchrec, "gone", None) is None
    with pytest.raises(AttributeError, match=r"torchrec\.gone is left out here: it needs a GPU"):
        getattr(torchrec, "gone")  # noqa: B009 (a read would be answered)
    with pytest.raises(AttributeError, match=r"no attribute '__nothing__'"):
        _ = torchrec.__nothing__


@pytest.mark.usefixtures("installed")
def test_a_name_comes_before_the_module_of_the_same_name() -> None:
    got = run(
        "import torchrec.sub.module\nfrom torchrec.sub import module\nfrom torchrec.sub.module import ceil"
    )
    assert got["module"] is __import__("math").trunc
    assert got["ceil"] is __import__("math").ceil


@pytest.mark.usefixtures("installed")
def test_names_are_imported_on_access_and_listed_before() -> None:
    import torchrec

    assert "floor" not in vars(torchrec)
    assert {"floor", "old", "sub"} <= set(dir(torchrec))
    assert "gone" not in dir(torchrec)
    assert torchrec.floor is vars(torchrec)["floor"]


def test_it_refuses_when_torchrec_itself_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = ModuleType("torchrec")
    genuine.__file__ = "/opt/torchrec/__init__.py"
    monkeypatch.setitem(sys.modules, "torchrec", genuine)
    with pytest.raises(RuntimeError, match=r"imported already, from /opt/torchrec/__init__\.py: call"):
        install()


@pytest.mark.usefixtures("installed")
def test_a_second_call_does_nothing_and_uninstall_takes_all_away() -> None:
    before = list(sys.meta_path)
    install()
    assert sys.meta_path == before
    importlib.import_module("torchrec.old.kept")
    uninstall()
    uninstall()
    assert not [name for name in sys.modules if name.partition(".")[0] == "torchrec"]
    assert len(sys.meta_path) == len(before) - 1


def test_nothing_is_installed_unless_asked_and_torch_is_imported_on_access() -> None:
    code = """
import sys
import recsys.as_torchrec
assert not any("as_torchrec" in type(f).__module__ for f in sys.meta_path)
recsys.as_torchrec.install()
import torchrec.distributed.planner, torchrec.sparse.jagged_tensor as jt
assert "torch" not in sys.modules
assert jt.KeyedJaggedTensor is recsys.KeyedJaggedTensor is torchrec.KeyedJaggedTensor
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(recsys.__file__).parents[1])
