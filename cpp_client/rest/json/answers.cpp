#include "rest/json/answers.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "format/json/json.h"
#include "wire/infer/infer_tensors.h"

namespace recsys {
namespace {

// From here on Python writes exponents.
constexpr double kLeastFixed = 1e-4, kMostFixed = 1e16;
// More than the longest number of 17 digits has.
constexpr std::size_t kNumberBytes = 40;

template <typename Value>
Value ValueAt(std::string_view values, std::size_t i) {
  Value value;
  std::memcpy(&value, values.data() + i * sizeof(Value), sizeof(Value));
  return value;
}

void AppendWhole(std::int64_t number, std::string* out) {
  char text[kNumberBytes];
  const auto end = std::to_chars(text, text + sizeof(text), number).ptr;
  out->append(text, end);
}

void AppendElement(const Output& output, std::string_view values, std::size_t i, std::string* out) {
  if (output.type == OutputType::kInt64) return AppendWhole(ValueAt<std::int64_t>(values, i), out);
  AppendJsonNumber(static_cast<double>(ValueAt<float>(values, i)), out);
}

/// Writes lists of `sizes`, from the element `*at` on.
void AppendNested(const Output& output, std::string_view values,
                  const std::vector<std::int64_t>& sizes, std::size_t depth, std::size_t* at,
                  std::string* out) {
  if (depth == sizes.size()) return AppendElement(output, values, (*at)++, out);
  out->push_back('[');
  for (std::int64_t i = 0; i < sizes[depth]; ++i) {
    if (i > 0) out->push_back(',');
    AppendNested(output, values, sizes, depth + 1, at, out);
  }
  out->push_back(']');
}

}  // namespace

void AppendJsonNumber(double number, std::string* out) {
  if (!std::isfinite(number)) {
    out->append("null");
    return;
  }
  char text[kNumberBytes];
  const double size = std::fabs(number);
  const bool is_fixed = size == 0 || (size >= kLeastFixed && size < kMostFixed);
  const auto form = is_fixed ? std::chars_format::fixed : std::chars_format::scientific;
  const auto end = std::to_chars(text, text + sizeof(text), number, form).ptr;
  const std::string_view written(text, static_cast<std::size_t>(end - text));
  out->append(written);
  if (is_fixed && written.find('.') == written.npos) out->append(".0");
}

void AppendJsonText(std::string_view text, std::string* out) {
  out->append(Json(text).dump(-1, ' ', true, Json::error_handler_t::replace));
}

RestBody WritePredictBody(std::string_view model, std::string_view version,
                          const std::vector<Output>& outputs, const AnswerRows& rows) {
  std::string out = "{\"model\":";
  AppendJsonText(model, &out);
  out.append(",\"version\":");
  AppendJsonText(version, &out);
  out.append(",\"outputs\":{");
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (i > 0) out.push_back(',');
    AppendJsonText(outputs[i].name, &out);
    out.push_back(':');
    std::size_t at = 0;
    AppendNested(outputs[i], rows.values[i], outputs[i].Dims(rows.num_rows), 0, &at, &out);
  }
  out.append("}}");
  const std::size_t num_bytes = out.size();
  return {std::move(out), num_bytes};
}

RestBody WriteRowsBody(const std::vector<Output>& outputs, const AnswerRows& rows) {
  std::string out = "{\"predictions\":[";
  std::vector<std::vector<std::int64_t>> sizes;
  sizes.reserve(outputs.size());
  for (const Output& output : outputs) sizes.push_back(output.Dims(rows.num_rows));
  std::vector<std::size_t> at(outputs.size(), 0);
  for (std::int64_t row = 0; row < rows.num_rows; ++row) {
    if (row > 0) out.push_back(',');
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (outputs.size() > 1) {
        out.push_back(i > 0 ? ',' : '{');
        AppendJsonText(outputs[i].name, &out);
        out.push_back(':');
      }
      // The first dimension is that of rows.
      AppendNested(outputs[i], rows.values[i], sizes[i], 1, &at[i], &out);
    }
    if (outputs.size() > 1) out.push_back('}');
  }
  out.append("]}");
  const std::size_t num_bytes = out.size();
  return {std::move(out), num_bytes};
}

RestBody WriteInferBody(const RestTarget& by, std::string_view id, const InferForm& form,
                        const std::vector<std::size_t>& wanted, const std::vector<Output>& outputs,
                        const AnswerRows& rows) {
  std::string out = "{\"model_name\":", binary;
  AppendJsonText(by.model, &out);
  out.append(",\"model_version\":");
  AppendJsonText(by.version, &out);
  if (!id.empty()) {
    out.append(",\"id\":");
    AppendJsonText(id, &out);
  }
  out.append(",\"outputs\":[");
  const std::size_t num_outputs = wanted.empty() ? outputs.size() : wanted.size();
  for (std::size_t i = 0; i < num_outputs; ++i) {
    const std::size_t number = wanted.empty() ? i : wanted[i];
    const Output& output = outputs[number];
    const std::string_view values = rows.values[number];
    out.append(i > 0 ? ",{\"name\":" : "{\"name\":");
    AppendJsonText(output.name, &out);
    out.append(",\"datatype\":\"").append(DatatypeOf(output)).append("\",\"shape\":[");
    bool is_first = true;
    output.ForEachSize(rows.num_rows, [&](std::int64_t size) {
      if (!std::exchange(is_first, false)) out.push_back(',');
      AppendWhole(size, &out);
    });
    if (form.IsBinary(output.name)) {
      out.append("],\"parameters\":{\"binary_data_size\":");
      AppendWhole(static_cast<std::int64_t>(values.size()), &out);
      out.append("}}");
      binary.append(values);
      continue;
    }
    out.append("],\"data\":[");
    for (std::size_t k = 0; k * output.element_bytes() < values.size(); ++k) {
      if (k > 0) out.push_back(',');
      AppendElement(output, values, k, &out);
    }
    out.append("]}");
  }
  out.append("]}");
  const std::size_t num_bytes = out.size();
  return {out.append(binary), num_bytes};
}

}  // namespace recsys
