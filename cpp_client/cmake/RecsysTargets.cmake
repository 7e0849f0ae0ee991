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
  if(NOT sources)
    # A room without files yet is a library all the same, so that others can name it.
    set(sources ${CMAKE_CURRENT_BINARY_DIR}/empty.cpp)
    file(WRITE ${sources}.new "")
    configure_file(${sources}.new ${sources} COPYONLY)
  endif()
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC recsys_options)
endfunction()

function(recsys_program name folder)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cpp)
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE recsys_options)
endfunction()

# recsys_heavy_header(NAME HEADER): read once for all files of a room that it would take longest in.
function(recsys_heavy_header name header)
  get_target_property(type ${name} TYPE)
  if(NOT type STREQUAL INTERFACE_LIBRARY)
    target_precompile_headers(${name} PRIVATE ${header})
  endif()
endfunction()
