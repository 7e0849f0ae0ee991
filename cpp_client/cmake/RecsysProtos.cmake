# recsys_protos: generated messages and services of protos/. Only tests and benchmarks' peers use them: engine and client
# read and write the wire themselves.
pkg_check_modules(PROTOBUF IMPORTED_TARGET protobuf)
find_program(PROTOC protoc)
find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin)
if(NOT PROTOBUF_FOUND OR NOT PROTOC OR NOT GRPC_CPP_PLUGIN)
  message(STATUS "no protobuf compiler with gRPC's plugin: no tests of what needs gRPC, no peers for benchmarks")
  return()
endif()

set(protos_root ${CMAKE_CURRENT_SOURCE_DIR}/../protos)
set(protos_out ${CMAKE_CURRENT_BINARY_DIR}/protos)
file(MAKE_DIRECTORY ${protos_out})
set(protos_sources)
foreach(proto recsys/v1/predict inference/open_inference predictor/predictor)
  set(made ${protos_out}/${proto}.pb.cc ${protos_out}/${proto}.grpc.pb.cc)
  add_custom_command(OUTPUT ${made} ${protos_out}/${proto}.pb.h ${protos_out}/${proto}.grpc.pb.h
    COMMAND ${PROTOC} --proto_path=${protos_root} --cpp_out=${protos_out} --grpc_out=${protos_out}
      --plugin=protoc-gen-grpc=${GRPC_CPP_PLUGIN} ${protos_root}/${proto}.proto
    DEPENDS ${protos_root}/${proto}.proto)
  list(APPEND protos_sources ${made})
endforeach()
add_library(recsys_protos STATIC EXCLUDE_FROM_ALL ${protos_sources})
set_target_properties(recsys_protos PROPERTIES UNITY_BUILD OFF)
target_include_directories(recsys_protos SYSTEM PUBLIC ${protos_out})
target_link_libraries(recsys_protos PUBLIC PkgConfig::PROTOBUF PkgConfig::GRPC)
