"""All commands give options in one way: by flags and TOML keys of one table, with errors of one form."""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from export.options import COMMAND as EXPORT
from recsys.data.options import COMMAND as DATA
from recsys.options.kinds import PATH, SWITCH, Kind
from recsys.options.table import Command, Option, _name_old_once, key_of
from recsys.planner import options as plan
from recsys.train.commands.eval_options import COMMAND as EVAL
from recsys.train.commands.train_options import COMMAND as TRAIN
from serve.app.cli import main as serve
from serve.bench.cli import COMMAND as BENCH
from serve.profiler.options import COMMAND as PROFILE
from serve.tools.admin import COMMAND as ADMIN
from serve.tools.predict import COMMAND as PREDICT
from tests.recsys.programs.test_program_options import SCRIPTS

Parse = Callable[[Sequence[str]], argparse.Namespace]
# Each command line that has options of its own: how it begins, and what parses it; recsys-serve's settings are in
# tests/serve/config/test_sources.py.
_LINES: dict[str, tuple[list[str], Command, Command | None]] = {
    "recsys-data inspect": (["inspect"], DATA, DATA.commands["inspect"]),
    "recsys-data item-vectors": (["item-vectors"], DATA, DATA.commands["item-vectors"]),
    "recsys-train": ([], TRAIN, None),
    "recsys-eval": ([], EVAL, None),
    "recsys-plan": ([], plan.COMMAND, None),
    "recsys-plan calibrate": ([], plan.CALIBRATE, None),
    "recsys-plan diff": ([], plan.DIFF, None),
    "recsys-export": ([], EXPORT, None),
    "recsys-predict": ([], PREDICT, None),
    "recsys-bench": ([], BENCH, None),
    "recsys-profile": ([], PROFILE, None),
    **{f"recsys-admin {name}": ([name], ADMIN, command) for name, command in ADMIN.commands.items()},
}


def _options(line: str) -> list[Option]:
    _, command, part = _LINES[line]
    return [*command.options, *(() if part is None else part.options)]


def _needed(line: str, but: Option) -> list[str]:
    """Return a command line with what the command needs, without one option."""
    begin, command, part = _LINES[line]
    words = {True: list[str](), False: list[str]()}
    for option in _options(line):
        if option.required and option.name != but.name:
            of_part = part is not None and option in part.options
            flag = [] if option.is_positional else [option.name]
            words[of_part] += [*flag, option.kind.example]
    chosen = next((group for group in command.groups if group.one_of), None)
    if chosen is not None and but not in chosen.options:
        words[False].append("--random")
    return [*words[False], *begin, *words[True]]


def _toml(option: Option) -> str:
    """Return an example of the option's value as TOML."""
    kinds = option.kind.in_file
    value = option.kind.example if str in kinds else json.loads(option.kind.example)
    return json.dumps([value, value] if option.repeated else value)


def _flags(option: Option) -> list[str]:
    if option.kind is SWITCH:
        return [option.name]
    return [option.name, option.kind.example] * (2 if option.repeated else 1)


@pytest.mark.parametrize("line", _LINES)
def test_each_option_has_a_key_in_toml(line: str, tmp_path: Path) -> None:
    command = _LINES[line][1]
    for option in _options(line):
        file = tmp_path / "options.toml"
        file.write_text(f"{option.key} = {_toml(option)}\n")
        parsed = command.parse([*_needed(line, option), "--config", str(file)])
        found = getattr(parsed, option.attribute)
        assert option.attribute in parsed.given, option.name
        if option.is_positional:
            word: Any = option.kind.example
            value = tmp_path / word if option.kind.parse is PATH.parse else word
            assert found == ([value, value] if option.repeated else value), option.name
            continue
        assert found == getattr(command.parse([*_needed(line, option), *_flags(option)]), option.attribute)


@pytest.mark.parametrize("line", _LINES)
def test_an_unknown_key_and_an_unknown_flag_are_named_with_what_was_meant(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = _LINES[line][1]
    option = next(option for option in reversed(_options(line)) if len(option.key) > 4)
    file = tmp_path / "options.toml"
    file.write_text(f"{option.key}x = 1\n")
    for words in (["--config", str(file)], ["--configg", "x"]):
        with pytest.raises(SystemExit) as ended:
            command.parse([*_needed(line, option), *words])
        said = capsys.readouterr().err.splitlines()[-1]
        assert ended.value.code == 2
        meant = "--config" if "--configg" in words else option.key
        assert re.search(rf"; did you mean ([\w-]+ or )?{meant}\b", said) or option.required, said


@pytest.mark.parametrize("line", _LINES)
def test_help_ends_with_an_example(line: str) -> None:
    _, command, part = _LINES[line]
    words = (part or command).epilog
    assert f"  {line.split()[0]} " in words
    for example in re.findall(rf"^  ({line.split()[0]} .*?)(?:  +.*)?$", words, re.MULTILINE):
        flags = {flag.partition("=")[0] for flag in re.findall(r"(?<=\s)--[\w-]+", example)}
        known = {
            option.name for name in _LINES if name.startswith(line.split()[0]) for option in _options(name)
        }
        assert flags <= known | {"--help"}, example


def test_all_commands_are_walked(capsys: pytest.CaptureFixture[str]) -> None:
    assert {line.split()[0] for line in _LINES} == SCRIPTS.keys() - {"recsys-serve"}
    for words, text in ((["--prot", "1"], "--port"), (["--help"], "examples:\n  recsys-serve ")):
        with pytest.raises(SystemExit) as ended:
            serve(words)
        printed = capsys.readouterr()
        assert ended.value.code == (0 if words == ["--help"] else 2)
        assert text in printed.out + printed.err


# Flags that take other values in other commands, with the reason.
_DIFFERENT = {
    "--data",  # in training also the name of a source
    "--ids-per-bag",  # of one batch in profiles; of each input in a load
    "--model",  # one to train, and one of a server
    "--out",  # an export's also in an object store
    "--plan",  # one for each target in an export
    "--rows",  # a mix in a load
    "--seed",  # of 32 bits in a load
    "--target",  # several in an export
}


def test_one_flag_has_one_meaning() -> None:
    kinds: dict[str, dict[tuple[Any, ...], str]] = defaultdict(dict)
    for line in _LINES:
        for option in _options(line):
            if not option.is_positional:
                kinds[option.name].setdefault((_form(option.kind), option.repeated), line)
    several = {name: found for name, found in kinds.items() if len(found) > 1}
    assert several.keys() == _DIFFERENT, several


def _form(kind: Kind) -> tuple[Any, ...]:
    return tuple(sorted(kind.choices)), kind.expected if not kind.choices else ""


@pytest.mark.parametrize(
    ("line", "old", "new"),
    [(line, old, option) for line in _LINES for option in _options(line) for old in option.old],
)
def test_an_old_name_still_works_and_names_the_new_one(
    line: str,
    old: str,
    new: Option,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _name_old_once.cache_clear()
    words = [] if new.kind is SWITCH else [new.kind.example]
    command = _LINES[line][1]
    parsed = command.parse([*_needed(line, new), old, *words])
    said = capsys.readouterr().err
    assert said == f"{command.program}: warning: {old} is an old name, use {new.name}\n"
    now = command.parse([*_needed(line, new), new.name, *words])
    assert getattr(parsed, new.attribute) == getattr(now, new.attribute)
    file = tmp_path / "options.toml"
    file.write_text(f"{key_of(old)} = {_toml(new)}\n")
    assert new.attribute in command.parse([*_needed(line, new), "--config", str(file)]).given
    assert f"{key_of(old)} is an old name, use {new.key}\n" in capsys.readouterr().err


def test_the_old_flag_of_the_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _name_old_once.cache_clear()
    file = tmp_path / "model.toml"
    file.write_text('model = "dcn"\nover_layers = [64, 32]\n')
    parsed = TRAIN.parse(["--data", "synthetic", "--model-config", str(file), "--over-layers", "8"])
    assert (parsed.model, parsed.over_layers) == ("dcn", (8,))
    assert "--model-config is an old name, use --config" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot read it: No such file or directory"),
        ("=", "not readable as TOML"),
        ("epochs = true", "epochs: got 'True', expected a whole number of at least 1"),
        ("epochs = 1.5", "epochs: got '1.5', expected a whole number of at least 1"),
        ("[epochs]\nn = 1", "epochs: got \"{'n': 1}\", expected a whole number of at least 1"),
        ("resume = 1", "resume: got '1', expected true or false"),
        ("over_layers = [64, 0]", "over_layers: got '64,0', expected whole numbers of at least 1"),
        ("out = ''", "out: got '', expected a path"),
        ("learning_rate = inf", "learning_rate: got 'inf', expected a number above 0"),
        ("label = ['a', 3.5, []]", "label: got '[]', expected a text such as click"),
    ],
)
def test_wrong_files_are_refused(
    text: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "options.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SystemExit) as ended:
        TRAIN.parse(["--data", "synthetic", "--config", str(file)])
    assert ended.value.code == 2
    assert f"recsys-train: {file}: {said}" in capsys.readouterr().err


def test_the_flag_of_the_file_is_given_whole_and_a_wrong_file_ends_even_the_help(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "options.toml"
    for words, said in (
        (["--conf", str(file)], "--config: got an abbreviation, expected the whole flag"),
        (["--config", str(file), "--help"], f"{file}: cannot read it: No such file or directory"),
        (["--config"], "--config: expected one argument"),
    ):
        with pytest.raises(SystemExit) as ended:
            TRAIN.parse(["--data", "synthetic", *words])
        assert ended.value.code == 2
        assert capsys.readouterr().err.splitlines()[-1] == f"recsys-train: {said}"


def test_paths_of_a_file_are_relative_to_its_folder_and_flags_beat_it(tmp_path: Path) -> None:
    file = tmp_path / "options.toml"
    file.write_text('data = "clicks.csv"\nout = "model.pt"\nlabel = ["a", "b"]\n')
    parsed = TRAIN.parse(["--config", str(file), "--label", "c"])
    assert (parsed.data, parsed.out, parsed.labels) == (tmp_path / "clicks.csv", tmp_path / "model.pt", ["c"])


def _wrong(option: Option) -> Iterator[str]:
    if option.kind.choices:
        yield option.kind.choices[0] + "x"
    elif int in option.kind.in_file and str not in option.kind.in_file:
        yield from ("x", "-1" if option.kind.expected != "a whole number" else "1.5")


@pytest.mark.parametrize("line", _LINES)
def test_a_wrong_value_is_refused_with_what_is_expected(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = _LINES[line][1]
    for option in _options(line):
        for text in _wrong(option):
            file = tmp_path / "options.toml"
            file.write_text(f"{option.key} = {json.dumps(text)}\n")
            for words, where in (
                ([f"{option.name}={text}"], option.name),
                (["--config", str(file)], f"{file}: {option.key}"),
            ):
                with pytest.raises(SystemExit) as ended:
                    command.parse([*_needed(line, option), *words])
                said = capsys.readouterr().err
                assert ended.value.code == 2
                assert f": {where}: got '{text}', expected {option.kind.expected}" in said


@pytest.mark.parametrize("line", ["recsys-train", "recsys-predict", "recsys-profile"])
def test_seeds_may_be_dates_with_times(line: str) -> None:
    command = _LINES[line][1]
    option = next(option for option in _options(line) if option.name == "--seed")
    assert command.parse([*_needed(line, option), "--seed", "20261127013000"]).seed == 20261127013000


@pytest.mark.parametrize("line", ["recsys-predict", "recsys-data item-vectors"])
def test_an_empty_text_keeps_no_column(line: str) -> None:
    """As that of an unset variable of a shell."""
    command = _LINES[line][1]
    option = next(option for option in _options(line) if option.name == "--keep")
    for text, names in (("", ()), ("a,b", ("a", "b"))):
        assert command.parse([*_needed(line, option), "--keep", text]).keep == names


@pytest.mark.parametrize(("word", "exponent"), [("uniform", 0.0), ("zipf", 1.05)])
def test_profiles_still_take_the_words_of_ids(word: str, exponent: float) -> None:
    assert PROFILE.parse(["model.artifact", "--ids", word]).zipf == exponent
