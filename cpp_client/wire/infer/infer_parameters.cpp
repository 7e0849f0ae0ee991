#include "wire/infer/infer_parameters.h"

#include <string>

#include "base/text.h"
#include "recsys/error.h"

namespace recsys {
namespace {

constexpr std::int64_t kNumPriorities = 3;
constexpr double kUsPerSecond = 1e6;

bool IsGiven(const ParameterValue& value) { return !std::holds_alternative<std::monostate>(value); }

/// Returns the value as error texts show it.
std::string ShortOf(const ParameterValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "True" : "False";
  if (const auto* number = std::get_if<std::int64_t>(&value)) return std::to_string(*number);
  if (const auto* number = std::get_if<std::uint64_t>(&value)) return std::to_string(*number);
  if (const auto* number = std::get_if<double>(&value)) return ReprFloat(*number);
  if (const auto* text = std::get_if<std::string_view>(&value)) return Short(*text);
  if (const auto* other = std::get_if<OtherParameter>(&value)) return std::string(other->text);
  return "None";
}

/// Returns a whole number from 0 to the largest int64.
std::optional<std::int64_t> NumberOf(const ParameterValue& value) {
  if (const auto* number = std::get_if<std::int64_t>(&value)) {
    if (*number >= 0) return *number;
  } else if (const auto* large = std::get_if<std::uint64_t>(&value)) {
    if (*large >> 63 == 0) return static_cast<std::int64_t>(*large);
  }
  return std::nullopt;
}

Error Wrong(const char* name, const ParameterValue& value, const std::string& expected) {
  return Error(ErrorKind::kRequest, std::string("parameters['") + name + "']: got " +
                                        ShortOf(value) + ", expected " + expected);
}

/// Whether a parameter requests nothing: zero of any type, or an empty text.
bool IsZero(const ParameterValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return !*flag;
  if (const auto* number = std::get_if<double>(&value)) return *number == 0.0;
  if (const auto* text = std::get_if<std::string_view>(&value)) return text->empty();
  return NumberOf(value) == 0;
}

int PriorityOf(const ParameterValue& value) {
  if (!IsGiven(value)) return 2;
  const auto number = NumberOf(value);
  if (!number || *number > kNumPriorities) {
    throw Wrong("priority", value, "0 (default) to 3 (served last)");
  }
  return *number == 0 ? 2 : static_cast<int>(*number);
}

std::optional<double> TimeoutOf(const ParameterValue& value) {
  if (!IsGiven(value)) return std::nullopt;
  const auto number = NumberOf(value);
  if (!number) {
    throw Wrong("timeout", value, "a whole number of microseconds (0 for none)");
  }
  if (*number == 0) return std::nullopt;
  return static_cast<double>(*number) / kUsPerSecond;
}

}  // namespace

ParameterValue* ParameterValues::Find(std::string_view name) {
  if (name == "priority") return &priority;
  if (name == "timeout") return &timeout;
  if (name == "context") return &context;
  return name == "sequence_id" ? &sequence_id : nullptr;
}

InferParameters ReadParameters(const ParameterValues& given) {
  if (IsGiven(given.sequence_id) && !IsZero(given.sequence_id)) {
    throw Error(ErrorKind::kRequest,
                "parameters['sequence_id']: got a sequence, expected none: no model here keeps "
                "state between requests");
  }
  InferParameters read;
  read.priority = PriorityOf(given.priority);
  read.timeout_s = TimeoutOf(given.timeout);
  if (const auto* names = std::get_if<std::string_view>(&given.context)) {
    read.context = *names;
  } else if (IsGiven(given.context)) {
    throw Wrong("context", given.context, "names of inputs, with commas between them");
  }
  return read;
}

}  // namespace recsys
