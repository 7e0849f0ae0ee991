"""The command line: what it lists, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recsys.as_torchrec.cli import listed, main, names_json, names_text
from recsys.as_torchrec.table import load_table, read_table

TABLE = """
["torchrec.sub"]
ceil = { ours = "math:ceil", signature = "it is faster" }
Class = { ours = "decimal:Decimal", without = { ln = "nobody asks for it" } }
gone = { left_out = "it needs a GPU" }

["torchrec"]
floor = "math:floor"
"""


def test_names_are_listed_with_reasons(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(TABLE)
    table = read_table(tmp_path)
    assert names_text(listed(table, [])).splitlines() == [
        "torchrec",
        "  floor  math:floor",
        "torchrec.sub",
        "  Class  decimal:Decimal",
        "         without ln: nobody asks for it",
        "  ceil   math:ceil",
        "         signature: it is faster",
        "  gone   left out: it needs a GPU",
        "3 names are defined, 1 are left out",
    ]
    assert names_json(listed(table, ["GONE", "class"])) == [
        {"name": "torchrec.sub.Class", "ours": "decimal:Decimal", "without": {"ln": "nobody asks for it"}},
        {"name": "torchrec.sub.gone", "left_out": "it needs a GPU"},
    ]


def test_the_command_lists_the_whole_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--names", "--json"]) == 0
    names = json.loads(capsys.readouterr().out)
    assert len(names) == len(list(load_table()))
    assert main(["--names", "KeyedJaggedTensor"]) == 0
    assert "recsys.jagged.keyed_jagged:KeyedJaggedTensor" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected a script"),
        (["no_such_file.py"], "script: got no_such_file.py, expected a file that exists"),
        (["--nmes"], "did you mean --names?"),
        (["-m"], "expected one argument"),
    ],
)
def test_wrong_words_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
