"""Put the native modules that ``make native`` has built into the wheel, which is a platform wheel then.

All else stands in pyproject.toml. ``RECSYS_WHEEL=pure`` in the environment leaves them out.
"""

import os
import sysconfig
from pathlib import Path

import setuptools

ROOT = Path(__file__).parent
#: The folder of each native module's package, and the module's name.
MODULES = {"recsys/kernels": "_ops", "serve/engine": "_engine", "serve/bench/load": "_sender"}


def built_modules() -> dict[str, list[str]]:
    """Return the files of the modules that were built for this Python, by package."""
    if os.environ.get("RECSYS_WHEEL") == "pure":
        return {}
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return {
        folder.replace("/", "."): [name + suffix]
        for folder, name in MODULES.items()
        if (ROOT / folder / (name + suffix)).is_file()
    }


class Distribution(setuptools.Distribution):
    """The project, with its native modules as package data."""

    def parse_config_files(self, *args, **kwargs) -> None:
        """Read pyproject.toml, then add the modules."""
        super().parse_config_files(*args, **kwargs)
        self.package_data.update(built_modules())

    def has_ext_modules(self) -> bool:
        """Return whether the wheel fits one platform only."""
        return bool(built_modules())


setuptools.setup(distclass=Distribution)
