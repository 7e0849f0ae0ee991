#ifndef RECSYS_WIRE_INFER_INFER_RESPONSE_H_
#define RECSYS_WIRE_INFER_INFER_RESPONSE_H_

#include <cstddef>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "recsys/signature.h"
#include "wire/writer.h"

namespace recsys {

/// What stands in an answer beside its outputs.
struct InferAnswer {
  std::string_view model;
  std::string_view version;
  std::string_view id;
  /// The numbers of the outputs that are sent, in this order; empty for all.
  const std::vector<std::size_t>& wanted;
  /// Streams' answers say that each is its request's last one, as Triton's clients may ask.
  bool is_final = false;
};

/// An inference.ModelInferResponse, its values as bytes.
Message WriteInferResponse(const InferAnswer& answer, const std::vector<Output>& outputs,
                           const AnswerRows& rows);

/// A ModelStreamInferResponse around an answer.
Message WriteInferStreamResponse(Message response);

/// A ModelStreamInferResponse that says why there is no answer to the request of this id.
Message WriteInferStreamError(std::string_view id, std::string_view text);

}  // namespace recsys

#endif  // RECSYS_WIRE_INFER_INFER_RESPONSE_H_
