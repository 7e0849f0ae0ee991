# libFuzzer targets: fuzz/<name>.cpp is fuzz_<name>. They need clang, -DRECSYS_MODEL=OFF -DRECSYS_RPC=OFF, and
# fuzzer-no-link in RECSYS_SANITIZE, which makes the fuzzer see what its inputs reach.
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/*.cpp)
foreach(source ${sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(fuzz_${name} ${source})
  target_link_libraries(fuzz_${name} PRIVATE recsys_port recsys_rest recsys_wire recsys_ops)
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
endforeach()
