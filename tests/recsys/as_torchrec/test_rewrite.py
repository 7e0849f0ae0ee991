"""Imports that are rewritten: each form, what is left as it is, and files."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from recsys.as_torchrec.cli import main
from recsys.as_torchrec.rewrite.files import rewrite_file, rewrite_text
from recsys.as_torchrec.table import Table, read_table

TABLE = """
["torchrec"]
KeyedJaggedTensor = "recsys.jagged.keyed_jagged:KeyedJaggedTensor"
floor = "math:floor"
gone = { left_out = "it needs a GPU" }

["torchrec.sub"]
ceil = "math:ceil"
other = "cmath:sqrt"
Quant = "recsys.quant:QuantEmbeddingBagCollection"

["torchrec.sub.deep"]
sqrt = "math:sqrt"
"""


@pytest.fixture
def table(tmp_path: Path) -> Table:
    (tmp_path / "a.toml").write_text(TABLE)
    return read_table(tmp_path)


def rewritten(table: Table, source: str) -> str:
    return rewrite_text(textwrap.dedent(source), table)[0]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from torchrec import floor", "from math import floor"),
        ("from torchrec import floor as f", "from math import floor as f"),
        ("from torchrec import KeyedJaggedTensor", "from recsys import KeyedJaggedTensor"),
        ("from torchrec.sub import Quant", "from recsys import QuantEmbeddingBagCollection as Quant"),
        ("from torchrec.sub import Quant as Q", "from recsys import QuantEmbeddingBagCollection as Q"),
        ("from torchrec.sub import ceil, other", "from math import ceil\nfrom cmath import sqrt as other"),
        (
            "from torchrec.sub import ceil, other; x = 1",
            "from math import ceil; from cmath import sqrt as other; x = 1",
        ),
        (
            "if 1: from torchrec.sub import ceil, other",
            "if 1: from math import ceil; from cmath import sqrt as other",
        ),
        ("import torchrec\ntorchrec.floor(1)", "import math\nmath.floor(1)"),
        ("import torchrec as t\nt.floor(1)", "import math as t\nt.floor(1)"),
        ("import torchrec as t\nt.sub.ceil(t.floor(1))", "import math\nmath.ceil(math.floor(1))"),
        ("import torchrec\nf(torchrec.sub.Quant)", "import recsys\nf(recsys.QuantEmbeddingBagCollection)"),
        ("import torchrec.sub\ntorchrec.sub.deep.sqrt.__name__", "import math\nmath.sqrt.__name__"),
        ("import torchrec, torchrec.sub\ntorchrec.floor", "import math\nmath.floor"),
        ("import os, torchrec as t\nt.floor", "import os\nimport math as t\nt.floor"),
        ("from torchrec import sub\nsub.ceil(1)", "import math as sub\nsub.ceil(1)"),
        ("from torchrec import floor, sub as s\ns.ceil", "from math import floor\nimport math as s\ns.ceil"),
        ("import torchrec  # noqa", "import recsys  # noqa"),
        ("import torchrec.sub as s", "import recsys as s"),
        ("import torchrec\nx: 'list[torchrec.floor]'", "import math\nx: 'list[math.floor]'"),
        (
            "import torchrec\ndef f(a: 'torchrec.floor') -> 'torchrec.sub.ceil': ...",
            "import math\ndef f(a: 'math.floor') -> 'math.ceil': ...",
        ),
        ("def f():\n    import torchrec\n    torchrec.floor", "def f():\n    import math\n    math.floor"),
        (
            "import torchrec\ndef f():\n    import torchrec\n    torchrec.floor",
            "import math\ndef f():\n    math.floor",
        ),
        (
            "import torchrec\nif 1:\n    import torchrec\ntorchrec.floor",
            "import math\nif 1:\n    import math\nmath.floor",
        ),
        ("import torchrec\nä = 'ü', torchrec.floor", "import math\nä = 'ü', math.floor"),
        ("from . import torchrec", "from . import torchrec"),
        ("x = 'the torchrec.floor'  # torchrec.floor", "x = 'the torchrec.floor'  # torchrec.floor"),
    ],
)
def test_every_form(table: Table, source: str, expected: str) -> None:
    for newline in ("\n", "\r\n"):
        lines = source.replace("\n", newline) + newline
        after, by_hand = rewrite_text(lines, table)
        assert after == expected.replace("\n", newline) + newline
        assert not by_hand
        assert rewrite_text(after, table)[0] == after


def test_formatting_and_comments_stay(table: Table) -> None:
    source = """
        from torchrec.sub import (  # all of it
            ceil,   # rounds up

            # and this
            deep
        )
        from torchrec.sub import (  # noqa: E501
            ceil,  # rounds up
            other as root,  # complex
            Quant,
        )

        x = {  'a':deep . sqrt  }
    """
    assert rewritten(table, source) == textwrap.dedent("""
        from math import (  # all of it
            ceil,  # rounds up
        )
        import math as deep
        from math import (  # noqa: E501
            ceil,  # rounds up
        )
        from cmath import (
            sqrt as root,  # complex
        )
        from recsys import QuantEmbeddingBagCollection as Quant

        x = {  'a':deep . sqrt  }
    """)


def test_one_module_for_another_changes_the_path_alone(table: Table) -> None:
    source = "from torchrec.sub import (\n  ceil ,  # up\n\n  # this too\n  ceil as again )\n"
    assert rewritten(table, source) == source.replace("torchrec.sub", "math")


def test_an_only_statement_that_is_not_needed_becomes_pass(table: Table) -> None:
    source = "import torchrec\ndef f():\n    import torchrec\ntorchrec.floor\n"
    assert rewritten(table, source) == "import math\ndef f():\n    pass\nmath.floor\n"


@pytest.mark.parametrize(
    ("source", "expected", "left"),
    [
        ("from torchrec import gone", None, [(1, "torchrec.gone", "is left out here: it needs a GPU")]),
        (
            "from torchrec import floor, gone",
            "from math import floor\nfrom torchrec import gone",
            [(1, "torchrec.gone", "it needs a GPU")],
        ),
        (
            "import torchrec\ntorchrec.floor\ntorchrec.gone",
            "import torchrec\nimport math\nmath.floor\ntorchrec.gone",
            [(3, "torchrec.gone", "it needs a GPU")],
        ),
        (
            "import torchrec.sub as s\ns.ceil\ns.flor",
            "import torchrec.sub as s\nimport math\nmath.ceil\ns.flor",
            [(3, "torchrec.sub.flor", "known here")],
        ),
        ("import torchrec.nope", "import torchrec.nope\nimport recsys", [(1, "torchrec.nope", "known here")]),
        ("from torchrec.sub import *", None, [(1, "torchrec.sub.*", "import the names")]),
        (
            "import torchrec\nf(torchrec)",
            "import torchrec\nimport recsys\nf(torchrec)",
            [(2, "torchrec", "as a value")],
        ),
        ("import torchrec\ntorchrec = None", None, [(1, "torchrec", "torchrec has several meanings")]),
        ("import torchrec as t\ndef f(t): t.floor", None, [(1, "torchrec", "t has several meanings")]),
        ("import torchrec\nrecsys = 1", None, [(1, "torchrec", "recsys has a meaning of its own")]),
        ("patch('torchrec.sub.ceil')", None, [(1, "torchrec.sub.ceil", "in a string")]),
    ],
)
def test_what_is_left_is_told(
    table: Table, source: str, expected: str | None, left: list[tuple[int, str, str]]
) -> None:
    after, by_hand = rewrite_text(source, table)
    assert after == (source if expected is None else expected)
    assert [(each.line, each.name) for each in by_hand] == [(line, name) for line, name, _ in left]
    assert all(reason in each.reason for each, (_, _, reason) in zip(by_hand, left, strict=True))


def test_a_file_keeps_its_encoding_and_mode(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "old.py"
    path.write_bytes(
        "# -*- coding: latin-1 -*-\nimport torchrec\nx = 'ä', torchrec.floor\n".encode("latin-1")
    )
    path.chmod(0o750)
    rewrite_file(path, table).write()
    assert path.read_bytes().endswith("import math\nx = 'ä', math.floor\n".encode("latin-1"))
    assert path.stat().st_mode & 0o777 == 0o750


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "code" / "a.py"
    path.parent.mkdir()
    (path.parent / ".hidden").mkdir()
    (path.parent / ".hidden" / "b.py").write_text("import torchrec\n")
    source = "from torchrec import KeyedJaggedTensor\n"
    path.write_text(source)
    assert main(["--rewrite", str(tmp_path), "--dry-run"]) == 0
    assert "-from torchrec import KeyedJaggedTensor\n+from recsys import" in capsys.readouterr().out
    assert main(["--rewrite", str(tmp_path), "--check"]) == 1
    assert path.read_text() == source
    capsys.readouterr()
    assert main(["--rewrite", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"rewritten": [str(path)], "by_hand": []}
    assert path.read_text() == "from recsys import KeyedJaggedTensor\n"
    assert main(["--rewrite", str(path), "--check"]) == 0
    path.write_text("\nfrom torchrec import no_such_name\n")
    capsys.readouterr()
    assert main(["--rewrite", str(path)]) == 1
    assert f"{path}:2: torchrec.no_such_name: torchrec has no no_such_name" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["{}/none"], ["{}/wrong.py"]])
def test_what_cannot_be_read_is_refused_and_nothing_written(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.py").write_text("import torchrec\nx = (\n")
    (tmp_path / "a.py").write_text("import torchrec\n")
    assert main(["--rewrite", str(tmp_path / "a.py"), *(word.format(tmp_path) for word in words)]) == 2
    assert "expected" in capsys.readouterr().err
    assert (tmp_path / "a.py").read_text() == "import torchrec\n"
