# The wire's C++ code, made from protos/ by Debian's protoc and its gRPC plugin.
# By pkg-config: torch's CMake files make a target protobuf::libprotobuf of their own, which links nothing.
find_package(PkgConfig REQUIRED)
pkg_check_modules(PROTOBUF REQUIRED IMPORTED_TARGET protobuf)
find_program(PROTOC protoc REQUIRED)
pkg_check_modules(GRPC REQUIRED IMPORTED_TARGET grpc++)
find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)

set(protos_root ${CMAKE_CURRENT_SOURCE_DIR}/../protos)
set(protos_out ${CMAKE_CURRENT_BINARY_DIR}/protos)
file(MAKE_DIRECTORY ${protos_out})
set(protos_sources)
foreach(proto recsys/v1/predict recsys/v1/admin inference/open_inference predictor/predictor
    grpc/health/v1/health grpc/reflection/v1alpha/reflection)
  set(root ${protos_root})
  if(proto MATCHES "^grpc/")
    set(root ${CMAKE_CURRENT_SOURCE_DIR}/protos)
  endif()
  set(made ${protos_out}/${proto}.pb.cc ${protos_out}/${proto}.grpc.pb.cc)
  add_custom_command(OUTPUT ${made} ${protos_out}/${proto}.pb.h ${protos_out}/${proto}.grpc.pb.h
    COMMAND ${PROTOC} --proto_path=${root} --cpp_out=${protos_out} --grpc_out=${protos_out}
      --plugin=protoc-gen-grpc=${GRPC_CPP_PLUGIN} ${root}/${proto}.proto
    DEPENDS ${root}/${proto}.proto)
  list(APPEND protos_sources ${made})
endforeach()
add_library(recsys_protos STATIC ${protos_sources})
set_target_properties(recsys_protos PROPERTIES UNITY_BUILD OFF)
target_include_directories(recsys_protos SYSTEM PUBLIC ${protos_out})
target_link_libraries(recsys_protos PUBLIC PkgConfig::PROTOBUF PkgConfig::GRPC)
