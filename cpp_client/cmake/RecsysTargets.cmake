# Every room is a static library of all its files; none is listed by name.

add_library(recsys_options INTERFACE)
target_compile_options(recsys_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror)
target_include_directories(recsys_options INTERFACE
  $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}>
  $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>)
if(RECSYS_SANITIZE)
  target_compile_options(recsys_options INTERFACE
    -fsanitize=${RECSYS_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(recsys_options INTERFACE -fsanitize=${RECSYS_SANITIZE})
endif()

# recsys_sources(VARIABLE FOLDER...): the .cpp files that lie in the folders themselves.
function(recsys_sources variable)
  list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/ OUTPUT_VARIABLE patterns)
  list(TRANSFORM patterns APPEND /*.cpp)
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  set(${variable} ${sources} PARENT_SCOPE)
endfunction()

# recsys_library(NAME FOLDER...): a static library of the folders' .cpp files.
function(recsys_library name)
  recsys_sources(sources ${ARGN})
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC recsys_options)
endfunction()

# recsys_program(NAME FOLDER)
function(recsys_program name folder)
  recsys_sources(sources ${folder})
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE recsys_options)
endfunction()

# These are compiled one by one also where several files are compiled as one (CMAKE_UNITY_BUILD): they define names or
# types in unnamed namespaces that other files of their folder define as well.
file(GLOB recsys_apart CONFIGURE_DEPENDS bench/*.cpp)
set_source_files_properties(${recsys_apart} request/input_checks.cpp format/manifest/manifest.cpp model/delta.cpp
  wire/torchrec_request.cpp wire/infer/infer_tensors.cpp engine/settings/settings.cpp
  engine/core/executor/pending_decisions.cpp engine/core/executor/executor_threads.cpp port/rpc_server.cpp engine/protocols/torchrec.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
