# The native sender of recsys-bench, and the servers that benchmarks compare with (bench/peers, target `peers`).
add_library(recsys_bench STATIC bench/lane.cpp bench/latencies.cpp bench/measured.cpp bench/sender.cpp)
target_link_libraries(recsys_bench PUBLIC recsys_client)
if(RECSYS_MODEL AND RECSYS_PYTHON)
  recsys_python_module(_sender serve/bench/load bench/binding.cpp)
  target_link_libraries(_sender PRIVATE recsys_bench)
endif()

# recsys_peer(NAME SOURCE LIBRARY...)
function(recsys_peer name source)
  add_executable(${name} EXCLUDE_FROM_ALL bench/peers/${source} bench/peers/until_stopped.cpp)
  target_link_libraries(${name} PRIVATE recsys_options Threads::Threads ${ARGN})
endfunction()

if(TARGET recsys_protos)
  recsys_peer(recsys-echo-server echo_server.cpp recsys_protos)
  recsys_peer(recsys-port-server port_server.cpp recsys_port)
  # For LD_PRELOAD: measures a server's mutexes.
  add_library(recsys-lock-times SHARED EXCLUDE_FROM_ALL bench/locks/lock_times.cpp)
  set_target_properties(recsys-lock-times PROPERTIES PREFIX "")
  target_link_libraries(recsys-lock-times PRIVATE recsys_options Threads::Threads ${CMAKE_DL_LIBS})
  # The policy on more processors than there are here.
  add_executable(recsys-scaling EXCLUDE_FROM_ALL bench/scaling/scaling.cpp)
  target_link_libraries(recsys-scaling PRIVATE recsys_core)
  add_custom_target(peers DEPENDS recsys-echo-server recsys-port-server recsys-lock-times recsys-scaling)
  if(RECSYS_MODEL)
    recsys_peer(recsys-plain-server plain_server.cpp recsys_protos recsys_model)
    add_dependencies(peers recsys-plain-server)
  endif()
endif()

# What tests in Python drive the client with.
if(RECSYS_TESTS)
  add_executable(recsys-client-tool ${CMAKE_CURRENT_SOURCE_DIR}/tests/tools/client/client_tool.cpp)
  target_link_libraries(recsys-client-tool PRIVATE recsys_client)
endif()
