"""The table of TorchRec's names: its files are read strictly, and every name can be imported."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from recsys.as_torchrec import table as table_module
from recsys.as_torchrec.table import load_table, read_table


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text)
    return folder


def test_every_defined_name_can_be_imported() -> None:
    unusable = []
    for entry in load_table():
        try:
            if entry.ours is not None:
                entry.load()
        except (ImportError, AttributeError) as error:
            unusable.append(f"{entry.area}.toml: {entry.path}: {error}")
    assert not unusable, "\n".join(unusable)


def test_packages_on_the_way_are_modules(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, a='["torchrec.x.y"]\nf = "math:floor"\n'))
    assert table.is_module("torchrec")
    assert table.children("torchrec") == ["x"]
    assert table.defined("torchrec.x.y") == ["f"]
    assert not table.is_module("torchrec.z")


def test_a_module_may_be_in_several_files(tmp_path: Path) -> None:
    same = '["torchrec"]\nf = "math:floor"\n'
    table = read_table(written(tmp_path, a=same, b=same + 'g = "math:ceil"\n'))
    assert table.defined("torchrec") == ["f", "g"]


def test_modules_hand_on_names_of_others(tmp_path: Path) -> None:
    handed_on = tmp_path / "handed_on"
    handed_on.write_text(
        '["torchrec.b"]\n"torchrec.a" = "f gone unlisted own"\n["torchrec.old.c"]\n"torchrec.a" = "f"\n'
        '["torchrec.nothing"]\n"torchrec.a" = "unlisted"\n'
    )
    text = """
        ["torchrec.a"]
        f = "math:floor"
        own = "math:floor"
        gone = { left_out = "no use" }
        ["torchrec.b"]
        own = "math:ceil"
        ["torchrec.old.c"]
        "*" = { left_out = "nobody uses it" }
    """
    table = read_table(written(tmp_path, a=text), handed_on)
    assert sorted(table.defined("torchrec.b")) == ["f", "own"]
    assert table.get("torchrec.b", "f") == table.get("torchrec.a", "f")
    entry = table.get("torchrec.b", "own")
    assert entry is not None
    assert entry.ours == "math:ceil"
    assert table.missing("torchrec.b", "gone") == "torchrec.a.gone is left out here: no use"
    assert table.get("torchrec.b", "unlisted") is None
    assert not table.is_module("torchrec.old.c")
    assert not table.is_module("torchrec.nothing")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('["torch"]\nf = "math:floor"\n', r'a\.toml: got torch, expected a table \["torchrec'),
        (
            '["torchrec"]\nf = "math.floor"\n',
            r"a\.toml: torchrec\.f: got 'math\.floor', expected \"module:name\"",
        ),
        ('["torchrec"]\nf = 3\n', r"torchrec\.f: got 3"),
        (
            '["torchrec"]\nf = { our = "math:floor" }\n',
            r"expected \"module:name\" or a table of \['left_out', 'ours'",
        ),
        ('["torchrec"]\nf = { signature = "no" }\n', r"expected either ours or left_out"),
        ('["torchrec"]\nf = { ours = "math:floor", left_out = "no" }\n', r"expected either ours or left_out"),
        ('["torchrec"]\nf = { left_out = "" }\n', r"expected reasons as text"),
        ('["torchrec"]\n"*" = "math:floor"\n', r"expected \"module:name\" for one name"),
        ('["torchrec"]\nf = { ours = "math:floor", without = ["g"] }\n', r"expected reasons as text"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_table(written(tmp_path, a=text))


def test_files_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    a, b = '["torchrec"]\nf = "math:floor"\n', '["torchrec"]\nf = "math:ceil"\n'
    with pytest.raises(ValueError, match=r"b\.toml: torchrec\.f contradicts a\.toml"):
        read_table(written(tmp_path, a=a, b=b))


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_what_is_defined_is_not_left_out(tmp_path: Path, order: str) -> None:
    texts = ('["torchrec"]\nf = "math:floor"\n', '["torchrec"]\nf = { left_out = "no use" }\n')
    table = read_table(written(tmp_path, **dict(zip(order, texts, strict=True))))
    assert table.defined("torchrec") == ["f"]


def test_no_name_is_listed_twice() -> None:
    places: dict[tuple[str, str], list[str]] = {}
    for file in sorted((Path(table_module.__file__).parent / "names").glob("*.toml")):
        for module, names in tomllib.loads(file.read_text()).items():
            for name in names:
                places.setdefault((module, name), []).append(file.name)
    twice = {".".join(name): files for name, files in places.items() if len(files) > 1}
    assert not twice, twice
