#ifndef RECSYS_WIRE_INFER_INFER_PARAMETERS_H_
#define RECSYS_WIRE_INFER_INFER_PARAMETERS_H_

// The parameters of an Open Inference request that are read, over gRPC and HTTP
// (serve/kserve_request.py); any other is ignored, as the protocol allows.

#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>

namespace recsys {

/// A value of another type than those below; `text`: what error texts call it.
struct OtherParameter {
  std::string_view text;
};

/// A parameter as it came; monostate where it did not. Texts are views into the message.
using ParameterValue = std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double,
                                    std::string_view, OtherParameter>;

struct ParameterValues {
  ParameterValue sequence_id;
  ParameterValue priority;
  ParameterValue timeout;
  ParameterValue context;

  /// Where a parameter of this name belongs; null where it is not read.
  ParameterValue* Find(std::string_view name);
};

/// What is asked for.
struct InferParameters {
  /// 1 high, 2 normal, 3 low.
  int priority = 2;
  /// How long the client waits; none where it did not say.
  std::optional<double> timeout_s;
  /// Names of the inputs that have one row, with commas between them.
  std::string_view context;
};

/// Throws Error: one is not of its type or range, or asks for what is not served.
InferParameters ReadParameters(const ParameterValues& given);

}  // namespace recsys

#endif  // RECSYS_WIRE_INFER_INFER_PARAMETERS_H_
