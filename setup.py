"""Put the native modules that ``make native`` has built into the wheel, which is a platform wheel then.

Such a wheel requires the torch that its modules were built for. All else stands in pyproject.toml.
``RECSYS_WHEEL=pure`` in the environment leaves the modules out.
"""

import json
import os
import re
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


def built_with() -> dict[str, str]:
    """Return the versions of torch and fbgemm_gpu that the modules were built with, empty where there are none."""
    for package, files in built_modules().items():
        found = re.search(
            rb"recsys-native-build (\{[^\0}]*\})", (ROOT / package.replace(".", "/") / files[0]).read_bytes()
        )
        if found:
            return json.loads(found[1])
    return {}


class Distribution(setuptools.Distribution):
    """The project, with its native modules as package data."""

    def parse_config_files(self, *args, **kwargs) -> None:
        """Read pyproject.toml, then add the modules and what they require."""
        super().parse_config_files(*args, **kwargs)
        self.package_data.update(built_modules())
        # An editable install's modules are built again for another torch.
        if os.environ.get("RECSYS_WHEEL") == "platform" and (built := built_with()):
            self.require(built)

    def require(self, built: dict[str, str]) -> None:
        """Require the torch that the modules were built for, also by the extras ``cpu`` and ``cuda``."""
        minor = ".".join(built["torch"].split(".")[:2])
        self.install_requires[:] = [
            f"torch=={minor}.*" if re.match(r"torch\b", each) else each for each in self.install_requires
        ]
        for extra in ("cpu", "cuda"):
            fitting = [
                requires
                for name, requires in self.extras_require.items()
                if name.partition("-")[0] == extra and requires[0].endswith(f"=={built['fbgemm_gpu']}")
            ]
            if fitting:
                self.extras_require[extra] = fitting[0]

    def has_ext_modules(self) -> bool:
        """Return whether the wheel fits one platform only."""
        return bool(built_modules())


setuptools.setup(distclass=Distribution)
