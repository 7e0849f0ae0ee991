#ifndef RECSYS_TESTS_PORT_ECHO_METHOD_H_
#define RECSYS_TESTS_PORT_ECHO_METHOD_H_

#include <memory>
#include <utility>

#include "port/rpc_server.h"

namespace recsys {

/// test.Echo with the method Echo, which answers its request at once; tests add others.
inline Service ServiceWithEcho() {
  Service service;
  service.name = "test.Echo";
  service.methods["Echo"].unary = [](std::shared_ptr<UnaryCall> call, Bytes request) {
    Message answer;
    answer.parts.push_back(std::move(request));
    call->Answer(std::move(answer));
    return nullptr;
  };
  return service;
}

}  // namespace recsys

#endif  // RECSYS_TESTS_PORT_ECHO_METHOD_H_
