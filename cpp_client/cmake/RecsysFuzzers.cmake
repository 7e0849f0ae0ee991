# libFuzzer targets: fuzz/<name>.cpp is fuzz_<name>. clang with -DRECSYS_MODEL=OFF -DRECSYS_RPC=OFF and
# fuzzer-no-link in RECSYS_SANITIZE: what they find their way by.
find_package(ZLIB REQUIRED)
# Of the HTTP room, which needs gRPC, what reads requests: that needs none.
set(readers http_message http_parser json_numbers json_parser json_value rest_encoding rest_infer rest_plain
  rest_route)
list(TRANSFORM readers PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/server/http/)
list(TRANSFORM readers APPEND .cpp)
add_library(recsys_http_readers STATIC ${readers})
target_link_libraries(recsys_http_readers PUBLIC recsys_core ZLIB::ZLIB)
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/*.cpp)
foreach(source ${sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(fuzz_${name} ${source})
  target_link_libraries(fuzz_${name} PRIVATE recsys_http_readers)
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
endforeach()
