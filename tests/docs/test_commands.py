"""Every command and flag in the documents is one that the programs take."""

from __future__ import annotations

import argparse
import importlib
import re
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.docs.pages import PAGES, ROOT, Command, code, commands

SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
MODULES = {
    "recsys.as_torchrec": "recsys.as_torchrec.cli:main",
    "recsys.train": "recsys.train.commands.train:main",
    "serve.probe": "serve.tools.probe:main",
}
COMMANDS = [command for page in PAGES for command in commands(page)]
_FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
# Flags of other programs that the documents name.
_FOREIGN = {
    "--build-arg",
    "--cpunodebind",
    "--extra-index-url",
    "--index-url",
    "--max-threads",
    "--raw",
    "--replicas",
}

# A command line of every parser, which is as short as it takes.
_SHORTEST = (
    ("recsys-train", "--data synthetic"),
    ("recsys-data", "inspect clicks.csv"),
    ("recsys-data", "item-vectors model.pt --data items.csv --out vectors.parquet"),
    ("recsys-eval", "model.artifact --data clicks.csv"),
    ("recsys-plan", "model.pt"),
    ("recsys-plan", "calibrate --out topology.json"),
    ("recsys-plan", "diff a.json b.json"),
    ("recsys-export", "model.pt"),
    ("recsys-serve", "model.artifact"),
    ("recsys-predict", "host:1 --random"),
    ("recsys-admin", "host:1 list"),
    ("recsys-bench", "host:1"),
    ("recsys-profile", "model.artifact"),
    ("serve.probe", "host:1"),
    ("recsys.as_torchrec", "--names"),
)


class _Parsed(BaseException):
    """A program has parsed its arguments: it need not go on."""


@pytest.fixture
def parsers(monkeypatch: pytest.MonkeyPatch) -> list[argparse.ArgumentParser]:
    """The parsers that programs have used; each program ends once it has parsed its arguments."""
    used: list[argparse.ArgumentParser] = []
    parse = argparse.ArgumentParser.parse_args

    def parse_args(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> None:
        used.append(self)
        parse(self, *args, **kwargs)
        raise _Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    return used


def main_of(program: str) -> Callable[[list[str]], int]:
    """Return the function behind a command or a module."""
    module, _, name = (SCRIPTS | MODULES)[program].partition(":")
    main: Callable[[list[str]], int] = getattr(importlib.import_module(module), name)
    return main


def flags_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the flags of a parser and of its subcommands."""
    yield from parser._option_string_actions
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from flags_of(command)


def test_the_documents_have_commands_of_every_program() -> None:
    assert {command.program for command in COMMANDS} >= set(SCRIPTS)
    assert len(COMMANDS) > 40


@pytest.mark.usefixtures("parsers")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: f"{c.place}-{c.program}")
def test_the_program_takes_the_command(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        main_of(command.program)(list(command.words))
    except _Parsed:
        return
    except SystemExit as ended:
        if ended.code == 0:  # --help and the like
            return
    pytest.fail(f"{command.place}: {command.program} {' '.join(command.words)}\n{capsys.readouterr().err}")


def test_every_flag_in_the_text_is_known(parsers: list[argparse.ArgumentParser]) -> None:
    for program, words in _SHORTEST:
        with pytest.raises(_Parsed):
            main_of(program)(words.split())
    known = {flag for parser in parsers for flag in flags_of(parser)} | _FOREIGN
    for benchmark in (ROOT / "benchmarks").rglob("*.py"):
        known.update(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', benchmark.read_text()))
    unknown = {
        f"{page.relative_to(ROOT)}: {flag}"
        for page in PAGES
        for text in code(page)
        for flag in _FLAG.findall(text)
        if flag not in known and page.name != "CHANGELOG.md"
    }
    assert not unknown, "unknown flags:\n" + "\n".join(sorted(unknown))
