"""RecsysTorch.cmake: the build takes any torch wheel, PyPI's CUDA build included, on a machine without CUDA."""

from __future__ import annotations

import shutil
import subprocess
import textwrap
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    shutil.which("cmake") is None or shutil.which("c++") is None, reason="needs cmake and a C++ compiler"
)
#: The version of the installed torch, whose headers stand beside the libraries here.
_VERSION = version("torch").partition("+")[0]
CMAKE_FOLDER = Path(__file__).parents[2] / "cpp_client" / "cmake"

#: As Caffe2Config.cmake of a CUDA wheel does where there is no CUDA toolkit.
CUDA_CONFIG = """
message(FATAL_ERROR "Your installed Caffe2 version uses CUDA but I cannot find the CUDA libraries.")
"""
#: Stands for libtorch_cpu of the CUDA build: it has one function, and needs CUDA's libraries itself.
LIBTORCH_CPU = """
extern "C" int cudaGetDeviceCount_v0(int*);
namespace at { int num_devices() { int n = 0; return cudaGetDeviceCount_v0(&n) == 0 ? n : -1; } }
"""
LIBC10 = """
#include <string>
namespace c10 {
struct Error { explicit Error(std::string text); std::string text; };
Error::Error(std::string given) : text(std::move(given)) {}
}
"""


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def compile_library(path: Path, source: str, *flags: str | Path) -> None:
    file = path.with_suffix(".cpp")
    file.write_text(source)
    done = run("c++", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", file, "-o", path, *flags)
    assert done.returncode == 0, done.stderr
    file.unlink()


def make_cuda_package(folder: Path) -> Path:
    """Make what a CUDA wheel has beside libtorch_cpu and libc10; return the package's folder."""
    package = folder / "torch"
    libraries = package / "lib"
    libraries.mkdir(parents=True)
    (package / "version.py").write_text(f"__version__ = '{_VERSION}+cu130'\ncuda: Optional[str] = '13.0'\n")
    config = package / "share" / "cmake" / "Torch"
    config.mkdir(parents=True)
    (config / "TorchConfig.cmake").write_text(CUDA_CONFIG)
    # The libraries of CUDA itself come in other packages: they are gone once this one is linked.
    compile_library(libraries / "libcudart.so.0", 'extern "C" int cudaGetDeviceCount_v0(int*) { return 1; }')
    for name in ("libc10_cuda.so", "libtorch_cuda.so"):
        compile_library(libraries / name, "", "-Wl,--no-as-needed", libraries / "libcudart.so.0")
    return package


def make_stub_package(folder: Path, *flags: str) -> Path:
    """Make a CUDA wheel of stubs, which programs can be linked with but not run."""
    package = make_cuda_package(folder)
    libraries = package / "lib"
    compile_library(libraries / "libtorch_cpu.so", LIBTORCH_CPU, libraries / "libcudart.so.0")
    compile_library(libraries / "libc10.so", LIBC10, *flags)
    (libraries / "libcudart.so.0").unlink()
    (package / "include" / "ATen").mkdir(parents=True)
    (package / "include" / "ATen" / "ATen.h").write_text("namespace at { int num_devices(); }\n")
    return package


def configure(folder: Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Configure a project of one program with RecsysTorch.cmake."""
    project = folder / "project"
    project.mkdir()
    (project / "main.cpp").write_text(source)
    (project / "CMakeLists.txt").write_text(
        textwrap.dedent(f"""
        cmake_minimum_required(VERSION 3.25)
        project(small LANGUAGES CXX)
        set(CMAKE_CXX_STANDARD 17)
        include("{CMAKE_FOLDER}/RecsysTorch.cmake")
        add_executable(small main.cpp)
        target_link_libraries(small PRIVATE recsys_torch)
        """)
    )
    return run("cmake", "-S", project, "-B", folder / "build", *arguments)


def test_programs_link_with_a_cuda_wheel_without_its_cuda_libraries(tmp_path: Path) -> None:
    package = make_stub_package(tmp_path)
    source = "#include <ATen/ATen.h>\nint main() { return at::num_devices(); }\n"
    done = configure(tmp_path, source, f"-DRECSYS_TORCH_PATH={package}")
    assert done.returncode == 0, done.stderr
    assert f"torch {_VERSION}" in done.stdout
    done = run("cmake", "--build", tmp_path / "build")
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_a_cuda_wheel_with_real_libraries_computes(tmp_path: Path) -> None:
    package = make_cuda_package(tmp_path)
    installed = Path(str(find_spec("torch").origin)).parent  # type: ignore[union-attr]
    for name in ("libtorch_cpu.so", "libc10.so", "libgomp.so.1"):
        (package / "lib" / name).symlink_to(installed / "lib" / name)
    (package / "include").symlink_to(installed / "include")
    source = "#include <ATen/ATen.h>\nint main() { return at::ones({3}).sum().item<int>(); }\n"
    done = configure(tmp_path, source, f"-DRECSYS_TORCH_PATH={package}")
    assert done.returncode == 0, done.stderr
    done = run("cmake", "--build", tmp_path / "build")
    assert done.returncode == 0, done.stdout
    assert run(tmp_path / "build" / "small").returncode == 3


def test_the_error_says_what_is_missing(tmp_path: Path) -> None:
    done = configure(tmp_path, "", f"-DRECSYS_TORCH_PATH={tmp_path}")
    assert done.returncode != 0
    text = " ".join(done.stderr.split())
    assert (
        f"RECSYS_TORCH_PATH: no lib/libtorch_cpu.so in {tmp_path}, expected an installed torch package"
        in text
    )


def test_other_versions_of_torch_are_refused(tmp_path: Path) -> None:
    package = make_stub_package(tmp_path)
    (package / "version.py").write_text("__version__ = '2.15.0+cu130'\n")
    done = configure(tmp_path, "", f"-DRECSYS_TORCH_PATH={package}")
    assert done.returncode != 0
    assert "torch: got version 2.15.0" in done.stderr


def test_the_old_abi_is_refused(tmp_path: Path) -> None:
    package = make_stub_package(tmp_path, "-D_GLIBCXX_USE_CXX11_ABI=0")
    done = configure(tmp_path, "", f"-DRECSYS_TORCH_PATH={package}")
    assert done.returncode != 0
    assert "_GLIBCXX_USE_CXX11_ABI=0, expected 1" in " ".join(done.stderr.split())
