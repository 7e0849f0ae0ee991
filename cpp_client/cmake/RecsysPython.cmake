# Python modules in C++, with pybind11's headers from the torch wheel.
#   RECSYS_PYTHON_INCLUDE: the folder of Python.h; RECSYS_PYTHON_SUFFIX: how the names of modules end, such as
#   ".cpython-311-x86_64-linux-gnu.so". cpp_client/wheels.py prints both.
#   RECSYS_PYTHON_ROOT: the folder that holds the package serve; target `native` copies the modules into it.
if(NOT EXISTS ${RECSYS_PYTHON_INCLUDE}/Python.h)
  message(FATAL_ERROR "RECSYS_PYTHON_INCLUDE: no Python.h in '${RECSYS_PYTHON_INCLUDE}', expected the headers of the "
    "Python that torch is installed for; with Debian's Python: apt-get install libpython3-dev")
endif()
if(NOT RECSYS_PYTHON_SUFFIX OR NOT RECSYS_FBGEMM_VERSION)
  message(FATAL_ERROR "RECSYS_PYTHON_SUFFIX and RECSYS_FBGEMM_VERSION: got '${RECSYS_PYTHON_SUFFIX}' and "
    "'${RECSYS_FBGEMM_VERSION}', expected what `python cpp_client/wheels.py` prints")
endif()
set(RECSYS_PYTHON_ROOT ${CMAKE_CURRENT_SOURCE_DIR}/.. CACHE PATH "the folder that holds the package serve")

# recsys_python_module(NAME FOLDER SOURCE...): a module in a folder of the Python packages.
function(recsys_python_module name folder)
  add_library(${name} MODULE ${ARGN} ${CMAKE_CURRENT_SOURCE_DIR}/cmake/older_libstdcxx.cpp)
  set_target_properties(${name} PROPERTIES
    PREFIX "" SUFFIX "${RECSYS_PYTHON_SUFFIX}" UNITY_BUILD OFF
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/python
    CXX_VISIBILITY_PRESET hidden
    # Python has loaded torch before. No folder of this machine belongs into what other machines get.
    SKIP_BUILD_RPATH ON)
  target_include_directories(${name} SYSTEM PRIVATE ${RECSYS_PYTHON_INCLUDE} ${RECSYS_TORCH_PATH}/include)
  target_compile_definitions(${name} PRIVATE
    RECSYS_VERSION="${PROJECT_VERSION}" RECSYS_TORCH_VERSION="${RECSYS_TORCH_VERSION}"
    RECSYS_FBGEMM_VERSION="${RECSYS_FBGEMM_VERSION}")
  # The module exports its entry point alone: other modules in the process have a pybind11 and libraries of their own.
  target_link_options(${name} PRIVATE -Wl,--as-needed
    -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/cmake/python_module.map)
  target_link_libraries(${name} PRIVATE recsys_options)
  # Renamed into place: no process sees half a file, and one that has loaded the old file keeps it.
  set(place ${RECSYS_PYTHON_ROOT}/${folder}/${name}${RECSYS_PYTHON_SUFFIX})
  add_custom_target(${name}_in_place
    COMMAND ${CMAKE_COMMAND} -E copy $<TARGET_FILE:${name}> ${place}.new
    COMMAND ${CMAKE_COMMAND} -E rename ${place}.new ${place}
    DEPENDS ${name} VERBATIM)
endfunction()
