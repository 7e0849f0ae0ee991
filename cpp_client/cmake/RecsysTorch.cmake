# recsys_torch: headers and libraries of an installed torch wheel, named directly.
#
# The wheel's find_package(Torch) is of no use here: PyPI's wheel for Linux is the CUDA build, and its Caffe2Config
# stops where the CUDA toolkit is missing. Nothing in this project calls CUDA's own headers or libraries.
#
# RECSYS_TORCH_PATH is the folder of the installed package `torch`; cpp_client/wheels.py prints it.
if(NOT RECSYS_TORCH_PATH)
  message(FATAL_ERROR "RECSYS_TORCH_PATH: got nothing, expected the folder of the installed torch package. "
    "`make native` sets it; by hand: cmake ... $(python cpp_client/wheels.py)")
endif()
foreach(file lib/libtorch_cpu.so lib/libc10.so include/ATen/ATen.h version.py)
  if(NOT EXISTS ${RECSYS_TORCH_PATH}/${file})
    message(FATAL_ERROR "RECSYS_TORCH_PATH: no ${file} in ${RECSYS_TORCH_PATH}, expected an installed torch package "
      "for Linux, version 2.11 to 2.14 (CPU or CUDA build)")
  endif()
endforeach()

file(STRINGS ${RECSYS_TORCH_PATH}/version.py line REGEX "^__version__ = ")
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" RECSYS_TORCH_VERSION "${line}")
if(RECSYS_TORCH_VERSION VERSION_LESS 2.11 OR RECSYS_TORCH_VERSION VERSION_GREATER_EQUAL 2.15)
  message(FATAL_ERROR "torch: got version ${RECSYS_TORCH_VERSION} in ${RECSYS_TORCH_PATH}, expected 2.11 to 2.14")
endif()

# The wheel's C++ ABI: which std::string the names of its functions contain.
file(STRINGS ${RECSYS_TORCH_PATH}/lib/libc10.so names REGEX "_ZN3c105ErrorC[12].*__cxx1112basic_string" LIMIT_COUNT 1)
if(names STREQUAL "")
  message(FATAL_ERROR "torch: ${RECSYS_TORCH_PATH}/lib/libc10.so was compiled with _GLIBCXX_USE_CXX11_ABI=0, expected 1 "
    "as in PyPI's wheels: Debian's C++ libraries fit no other")
endif()

add_library(recsys_torch INTERFACE)
# System headers: their warnings are not ours.
target_include_directories(recsys_torch SYSTEM INTERFACE
  ${RECSYS_TORCH_PATH}/include ${RECSYS_TORCH_PATH}/include/torch/csrc/api/include)
target_compile_definitions(recsys_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
# From 2.14 on its headers are C++20, in which GCC 12 takes empty optionals for uses of uninitialized values.
if(RECSYS_TORCH_VERSION VERSION_GREATER_EQUAL 2.14)
  target_compile_features(recsys_torch INTERFACE cxx_std_20)
  target_compile_options(recsys_torch INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endif()
target_link_libraries(recsys_torch INTERFACE
  # A CUDA build's libtorch_cpu needs libcudart and libcupti, which only its own RPATH finds, at run time.
  -Wl,--allow-shlib-undefined
  ${RECSYS_TORCH_PATH}/lib/libtorch_cpu.so ${RECSYS_TORCH_PATH}/lib/libc10.so ${CMAKE_DL_LIBS})
message(STATUS "torch ${RECSYS_TORCH_VERSION} in ${RECSYS_TORCH_PATH}")
