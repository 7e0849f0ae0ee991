#ifndef RECSYS_WIRE_INFER_INFER_PARAMETERS_H_
#define RECSYS_WIRE_INFER_INFER_PARAMETERS_H_

// The Open Inference request parameters that are supported, over gRPC and HTTP
// (serve/protocols/open_inference.py); all others are ignored, as the protocol allows.

#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>

namespace recsys {

/// A value of any other type; `text`: how error texts show it.
struct OtherParameter {
  std::string_view text;
};

/// A parameter as received; monostate if absent. Texts are views into the message.
using ParameterValue = std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double,
                                    std::string_view, OtherParameter>;

struct ParameterValues {
  ParameterValue sequence_id;
  ParameterValue priority;
  ParameterValue timeout;
  ParameterValue context;

  /// Returns where to store the parameter of this name; null if it is not supported.
  ParameterValue* Find(std::string_view name);
};

/// The checked parameters of a request.
struct InferParameters {
  /// 1 high, 2 normal, 3 low.
  int priority = 2;
  /// How long the client waits; not set if it did not say.
  std::optional<double> timeout_s;
  /// Comma-separated names of the inputs that have one row.
  std::string_view context;
};

/// Throws Error if a parameter has the wrong type or range, or requests an unsupported feature.
InferParameters ReadParameters(const ParameterValues& given);

}  // namespace recsys

#endif  // RECSYS_WIRE_INFER_INFER_PARAMETERS_H_
