"""Names that are left out: they can be imported, stand in annotations and be bases, and fail when they are used."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recsys.as_torchrec import hook, install, uninstall
from recsys.as_torchrec.left_out import LeftOutError
from recsys.as_torchrec.table import read_table

TABLE = """
["torchrec"]
floor = "math:floor"
Gone = { left_out = "it needs a GPU" }
gone = { left_out = "it needs a GPU" }

["torchrec.old"]
"*" = { left_out = "nobody uses it" }

["torchrec.old.kept"]
floor = "math:floor"
"""
REASON = r"torchrec\.Gone is left out here: it needs a GPU"


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchrec"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "a.toml").write_text(TABLE)
    monkeypatch.setattr(hook, "load_table", lambda: read_table(tmp_path / "table"))
    install()
    yield
    uninstall()


def run(folder: Path, code: str) -> dict[str, Any]:
    """Run code from a file: what handles errors is read in its source."""
    file = folder / f"code_{abs(hash(code))}.py"
    file.write_text(code)
    names: dict[str, Any] = {"__name__": "code"}
    exec(compile(code, str(file), "exec"), names)
    return names


@pytest.mark.parametrize(
    "code",
    [
        "from torchrec import Gone",
        "import torchrec; Gone = torchrec.Gone",
        "import torchrec as t\ndef get(): return t.Gone\nGone = get()",
        "from torchrec import *\nfrom torchrec import Gone as Gone",
        "def get():\n  from torchrec import Gone\n  return Gone\nGone = get()",
    ],
)
def test_every_form_of_import_works_and_the_call_says_why(tmp_path: Path, code: str) -> None:
    gone = run(tmp_path, code)["Gone"]
    with pytest.raises(LeftOutError, match=REASON):
        gone(3)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("from torchrec.old import Name as it", r"torchrec\.old\.Name is left out here: nobody uses it"),
        ("from torchrec.old import name as it", r"torchrec\.old\.name is left out here: nobody uses it"),
        (
            "import torchrec.old as old; it = old.name",
            r"torchrec\.old\.name is left out here: nobody uses it",
        ),
        ("from torchrec.old.below import name as it", r"torchrec\.old\.below\.name is left out here"),
        (
            "from torchrec.old.below.far import Name as it",
            r"torchrec\.old\.below\.far\.Name is left out here",
        ),
        ("import torchrec.old.below as b; it = b.Name", r"torchrec\.old\.below\.Name is left out here"),
        ("from torchrec import _private as it", r"torchrec\._private is private to TorchRec"),
        ("from torchrec.old.kept import _Own as it", r"torchrec\.old\.kept\._Own is left out here"),
    ],
)
def test_what_is_left_out_as_a_whole_can_be_imported(tmp_path: Path, code: str, message: str) -> None:
    it = run(tmp_path, code)["it"]
    with pytest.raises(LeftOutError, match=message):
        it()


@pytest.mark.parametrize(
    "code",
    [
        "x: Gone",
        "def f(a: Gone, b: Optional[Gone] = None, c: List[Gone] = (), *d: Dict[str, Gone]) -> Union[Gone, int]: ...",
        "def f(a: Gone | None, b: int | Gone, c: list[Gone], d: 'Gone[int]') -> Gone[int]: ...",
        "def f(a=Gone.ADAM, b=Gone): ...",
        "@dataclass\nclass A:\n  a: Gone\n  b: Optional[Gone] = None\nA(3, None)",
        "class A(NamedTuple):\n  a: Gone\nA(3)",
        "class A(Gone):\n  def f(self): return super().f()",
        "class A(Gone, nn.Module): ...",
        "class A(nn.Module, Gone): ...",
        "class A(Gone, abc.ABC):\n  @abc.abstractmethod\n  def f(self): ...",
        "class A(Gone, Generic[T]): ...",
        "class A(Gone.Inner): ...",
        "class A:\n  kind = Gone\n  kinds = {Gone: 1, Gone.ADAM: 2}\nassert A.kinds[Gone.ADAM] == 2",
        "assert not isinstance(3, Gone) and not isinstance(3, (Gone, str)) and not issubclass(int, Gone)",
        "def f(a: Optional[Gone]) -> 'List[Gone]': ...\nimport typing; typing.get_type_hints(f)",
        "class A(nn.Module):\n  a: Optional[Gone]\n  def forward(self, x): return x * 2\ngot = A()(3)\nassert got == 6",
    ],
)
@pytest.mark.parametrize("late", ["", "from __future__ import annotations\n"])
def test_it_stands_in_annotations_and_is_a_base(tmp_path: Path, code: str, late: str) -> None:
    imports = (
        "import abc\nfrom dataclasses import dataclass\nfrom typing import *\nfrom torch import nn\n"
        "from torchrec import Gone\nT = TypeVar('T')\n"
    )
    run(tmp_path, late + imports + code)


@pytest.mark.parametrize(
    "code",
    [
        *("Gone()", "Gone.from_config(1)", "list(Gone)", "len(Gone)", "3 in Gone", "@Gone\ndef f(): ..."),
        "class A(Gone):\n  def __init__(self): pass\nA()",
        "class A(Gone): ...\nclass B(A): ...\nB(1)",
        "class A(nn.Module, Gone): ...\nA()",
    ],
)
def test_a_use_says_why(tmp_path: Path, code: str) -> None:
    with pytest.raises(
        LeftOutError,
        match=r"torchrec\.Gone(\.from_config)? is left out here: it needs a GPU|torchrec.Gone is",
    ):
        run(tmp_path, f"from torch import nn\nfrom torchrec import Gone\n{code}")


@pytest.mark.parametrize(
    "code",
    [
        "try:\n  from torchrec import Gone\nexcept ImportError:\n  Gone = None",
        "try:\n  from torchrec import floor, Gone\nexcept (OSError, ImportError):\n  Gone = None",
        "try:\n  from torchrec.old import Gone\nexcept Exception:\n  Gone = None",
        "try:\n  import torchrec.old.below as Gone\nexcept ImportError:\n  Gone = None",
        "try:\n  from torchrec.old.below import Gone\nexcept:\n  Gone = None",
        "import contextlib\nGone = None\nwith contextlib.suppress(ImportError):\n  from torchrec import Gone",
        "import torchrec\nGone = getattr(torchrec, 'Gone', None)",
        "import torchrec\nGone = torchrec.Gone if hasattr(torchrec, 'Gone') else None",
        "from torchrec import Gone as g\nimport torchrec\nGone = getattr(torchrec, 'Gone', None)",
    ],
)
def test_code_that_asks_is_told_that_it_is_not_there(tmp_path: Path, code: str) -> None:
    assert run(tmp_path, code)["Gone"] is None


def test_a_try_that_does_not_handle_it_asks_nothing(tmp_path: Path) -> None:
    got = run(
        tmp_path, "try:\n  from torchrec import Gone\nexcept ValueError:\n  Gone = None\nfinally:\n  pass"
    )
    assert got["Gone"] is not None


def test_each_name_is_one_class() -> None:
    import torchrec

    first = torchrec.Gone
    from torchrec import Gone

    assert first is Gone
    assert Gone.ADAM is Gone.ADAM
    assert Gone.ADAM is not Gone.SGD
    assert "Gone" not in dir(torchrec)
