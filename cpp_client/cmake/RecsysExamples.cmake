# The programs of examples/, which the docs tell how to run: examples/<name>.cpp is example_<name>.
function(recsys_example name library)
  add_executable(example_${name} ${CMAKE_CURRENT_SOURCE_DIR}/examples/${name}.cpp)
  target_link_libraries(example_${name} PRIVATE ${library})
endfunction()

recsys_example(client recsys_client)
recsys_example(predict recsys_model)
recsys_example(server "recsys_engine;recsys_artifact")
