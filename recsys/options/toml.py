"""Read the TOML files that give options."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from recsys.options.kinds import ConfigError


def read_toml(path: Path) -> dict[str, Any]:
    """Return the keys and values of a TOML file.

    Raises:
        ConfigError: The file cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot read it: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not readable as TOML: {error}") from None
