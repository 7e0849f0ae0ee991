"""Pack the modules of recsys-serving that a client imports. All else stands in pyproject.toml."""

import re
import tomllib
from pathlib import Path

import setuptools
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
PROJECT = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]
MODULES = set(tomllib.loads((HERE / "pyproject.toml").read_text())["tool"]["client"]["modules"])
DEPENDENCIES = ("grpcio", "numpy", "protobuf")


class BuildClient(build_py):
    """Copies the modules that a client imports."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """Return the modules of a package that are packed."""
        return [
            found
            for found in super().find_package_modules(package, package_dir)
            if package == "serve.client" or found[1] == "__init__" or f"{package}.{found[1]}" in MODULES
        ]


PACKAGES = {
    package
    for module in (*MODULES, "serve.client.")
    for package in (module.rpartition(".")[0], module.partition(".")[0])
}

setuptools.setup(
    packages=sorted(PACKAGES),
    version=PROJECT["version"],
    install_requires=[
        each for each in PROJECT["dependencies"] if re.split(r"[^\w-]", each)[0] in DEPENDENCIES
    ],
    cmdclass={"build_py": BuildClient},
    options={"egg_info": {"egg_base": "."}},
)
