# recsys-cpp-bench, and what it is held against (bench/peers).
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/bench/*.cpp)
list(FILTER sources EXCLUDE REGEX "/bench/main\\.cpp$")
add_library(recsys_bench STATIC ${sources})
target_link_libraries(recsys_bench PUBLIC recsys_client)
target_compile_definitions(recsys_bench PRIVATE RECSYS_VERSION="${PROJECT_VERSION}")
add_executable(recsys-cpp-bench ${CMAKE_CURRENT_SOURCE_DIR}/bench/main.cpp)
target_link_libraries(recsys-cpp-bench PRIVATE recsys_bench)

add_executable(recsys-echo-server ${CMAKE_CURRENT_SOURCE_DIR}/bench/peers/echo_server.cpp
  ${CMAKE_CURRENT_SOURCE_DIR}/bench/peers/until_stopped.cpp)
target_link_libraries(recsys-echo-server PRIVATE recsys_options recsys_protos Threads::Threads)
if(RECSYS_MODEL)
  add_executable(recsys-plain-server ${CMAKE_CURRENT_SOURCE_DIR}/bench/peers/plain_server.cpp
    ${CMAKE_CURRENT_SOURCE_DIR}/bench/peers/until_stopped.cpp)
  target_link_libraries(recsys-plain-server PRIVATE recsys_options recsys_protos recsys_model)
endif()

add_executable(example_client ${CMAKE_CURRENT_SOURCE_DIR}/examples/client.cpp)
target_link_libraries(example_client PRIVATE recsys_client)

# What tests in Python drive the client with.
if(RECSYS_TESTS)
  add_executable(recsys-client-tool ${CMAKE_CURRENT_SOURCE_DIR}/tests/tools/client/client_tool.cpp)
  target_link_libraries(recsys-client-tool PRIVATE recsys_client)
endif()
