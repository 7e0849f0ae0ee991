#ifndef RECSYS_REST_JSON_ANSWERS_H_
#define RECSYS_REST_JSON_ANSWERS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "recsys/signature.h"
#include "rest/json/infer_body.h"
#include "wire/writer.h"

namespace recsys {

/// The body of an answer: JSON, then binary tensors if there are any.
struct RestBody {
  std::string data;
  std::size_t num_json_bytes = 0;
};

/// Writes a number as Python writes it: the shortest text that reads back as the same double, which
/// is never a whole number; null for NaN and infinities, which JSON does not have.
void AppendJsonNumber(double number, std::string* out);

/// Writes a text in quotes, with escapes for what is no ASCII.
void AppendJsonText(std::string_view text, std::string* out);

/// Returns the body of an answer in plain JSON: each output by name, one entry per row.
RestBody WritePredictBody(std::string_view model, std::string_view version,
                          const std::vector<Output>& outputs, const AnswerRows& rows);

/// Returns the body of an answer to rows in JSON: for each row a value, or an object of several.
RestBody WriteRowsBody(const std::vector<Output>& outputs, const AnswerRows& rows);

/// Returns the body of an answer of Open Inference. `wanted`: numbers of the outputs, in order;
/// empty for all.
RestBody WriteInferBody(const RestTarget& by, std::string_view id, const InferForm& form,
                        const std::vector<std::size_t>& wanted, const std::vector<Output>& outputs,
                        const AnswerRows& rows);

}  // namespace recsys

#endif  // RECSYS_REST_JSON_ANSWERS_H_
