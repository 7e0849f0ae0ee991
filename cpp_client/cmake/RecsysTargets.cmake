# Every room is a static library of all its files: nothing to list twice, and no list to forget.

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

# recsys_library(NAME FOLDER): the .cpp files that lie in FOLDER itself.
function(recsys_library name folder)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cpp)
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC recsys_options)
endfunction()

function(recsys_program name folder)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cpp)
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE recsys_options)
endfunction()

# Files whose names for things of their own are others' too, or whose types are so: in builds that compile several files
# as one (CMAKE_UNITY_BUILD) they stay apart.
file(GLOB recsys_apart CONFIGURE_DEPENDS server/http/*.cpp bench/*.cpp)
set_source_files_properties(${recsys_apart} check/sparse_check.cpp check/manifest.cpp model/delta.cpp
  config/settings.cpp config/report.cpp config/tls_files.cpp wire/torchrec_request.cpp wire/infer_tensors.cpp
  server/observe/metrics_page.cpp server/observe/metrics.cpp server/models/manager.cpp server/models/repository.cpp
  server/models/route_table.cpp server/rpc/rpc_server.cpp server/protocols/torchrec.cpp
  server/protocols/kserve_messages.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
