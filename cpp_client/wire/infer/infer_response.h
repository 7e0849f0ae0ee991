#ifndef RECSYS_WIRE_INFER_INFER_RESPONSE_H_
#define RECSYS_WIRE_INFER_INFER_RESPONSE_H_

#include <cstddef>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "recsys/signature.h"
#include "wire/writer.h"

namespace recsys {

/// The fields of an answer other than its outputs.
struct InferAnswer {
  std::string_view model;
  std::string_view version;
  std::string_view id;
  /// Indexes of the outputs to send, in this order; empty for all.
  const std::vector<std::size_t>& wanted;
  /// Answers on streams state that they are their request's last one, which Triton's clients may
  /// ask for.
  bool is_final = false;
};

/// Serializes an inference.ModelInferResponse with its values as bytes.
Message WriteInferResponse(const InferAnswer& answer, const std::vector<Output>& outputs,
                           const AnswerRows& rows);

/// Serializes a ModelStreamInferResponse that contains an answer.
Message WriteInferStreamResponse(Message response);

/// Serializes a ModelStreamInferResponse with an error for the request of this ID.
Message WriteInferStreamError(std::string_view id, std::string_view text);

}  // namespace recsys

#endif  // RECSYS_WIRE_INFER_INFER_RESPONSE_H_
