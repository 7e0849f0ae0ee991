"""Enough of a Dockerfile's grammar to hold ours to rules: stages, instructions, continued lines."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """One instruction; ``value`` is in one line."""

    name: str
    value: str

    def words(self) -> list[str]:
        """The value's words, those of the exec form too."""
        return json.loads(self.value) if self.value.startswith("[") else self.value.split()


@dataclass(frozen=True)
class Stage:
    """A FROM and what follows it."""

    image: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, name: str) -> list[Instruction]:
        """Its instructions of one name, in order."""
        return [found for found in self.instructions if found.name == name]


def read(path: Path) -> list[Stage]:
    """The stages of a Dockerfile; ARGs before the first FROM are put in where images name them."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    stages: list[Stage] = []
    values: dict[str, str] = {}
    for line in filter(None, text.splitlines()):
        name, _, value = line.partition(" ")
        made = Instruction(name.upper(), value.strip())
        if made.name == "FROM":
            image, _, stage_name = re.sub(
                r"\$\{(\w+)\}", lambda found: values[found[1]], made.value
            ).partition(" AS ")
            stages.append(Stage(image, stage_name))
        elif stages:
            stages[-1].instructions.append(made)
        else:
            assert made.name == "ARG"
            key, _, default = made.value.partition("=")
            values[key] = default
    return stages
