"""Print what CMake needs to know of this Python and its torch and fbgemm_gpu packages; import neither."""

import sys
import sysconfig
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path


def folder_of(package: str) -> Path:
    """Return the folder of an installed package."""
    found = find_spec(package)
    if found is None or found.origin is None:
        sys.exit(
            f"{package} is not installed for {sys.executable}; `make native` and `make setup` install it"
        )
    return Path(found.origin).parent


def version_of(package: str) -> str:
    """Return the version of the distribution that installed a package: fbgemm_gpu has two builds."""
    owners = packages_distributions().get(package, [])
    if not owners:
        sys.exit(f"{package} was not installed by pip for {sys.executable}: its version is unknown")
    return version(owners[0])


if __name__ == "__main__":
    print(f"-DRECSYS_TORCH_PATH={folder_of('torch')}")
    print(f"-DRECSYS_FBGEMM_VERSION={version_of('fbgemm_gpu')}")
    print(f"-DRECSYS_PYTHON_INCLUDE={sysconfig.get_path('include')}")
    print(f"-DRECSYS_PYTHON_SUFFIX={sysconfig.get_config_var('EXT_SUFFIX')}")
