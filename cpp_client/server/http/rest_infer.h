#ifndef RECSYS_SERVER_HTTP_REST_INFER_H_
#define RECSYS_SERVER_HTTP_REST_INFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "server/core/hosted.h"
#include "server/core/request.h"
#include "server/http/json_value.h"
#include "wire/infer_parameters.h"
#include "wire/infer_tensors.h"
#include "wire/owned_bytes.h"

namespace recsys {

/// The header that says how much of a body is JSON; the rest are the bytes of tensors.
inline constexpr char kJsonLengthHeader[] = "Inference-Header-Content-Length";

/// A body of Open Inference over HTTP: JSON, and Triton's binary tensors behind it
/// (serve/rest_json.py). It is made, read and its answer written by one thread after the other.
class InferBody {
 public:
  /// `num_json_bytes`: none where all of it is JSON. Throws Error (kRequest, kBodyTooLarge); what
  /// is wrong with its tensors shows in ReadInputs.
  InferBody(std::string data, std::optional<std::int64_t> num_json_bytes,
            std::size_t max_json_bytes);

  const std::string& id() const { return id_; }
  const InferParameters& parameters() const { return parameters_; }
  /// The memory that it takes until it is answered.
  std::size_t num_held_bytes() const { return data_.size() + HeldBytes(body_); }

  /// The inputs, for one model; `raw` points into this. May be called again. Throws Error.
  void ReadInputs(const Hosted& hosted, RawRequest* raw);

  /// The answer: JSON, and behind it the outputs that were asked for as binary tensors.
  struct Answer {
    Message message;
    std::size_t num_json_bytes = 0;
  };
  Answer Write(const Hosted& hosted, const Rows& rows) const;

 private:
  struct Wanted {
    std::string_view name;
    bool is_binary = false;
  };

  std::vector<Wanted> ReadWanted() const;
  std::vector<InferTensor> ReadTensors();
  InferTensor ReadTensor(const JsonValue& given, const std::string& at, std::size_t* num_taken);
  std::string_view ValuesOf(const InferTensor& tensor, const std::vector<std::int64_t>& shape,
                            const JsonValue::List& data);

  std::string data_;
  JsonValue::Object body_;
  std::string_view binary_;
  const JsonValue::List* inputs_ = nullptr;
  const JsonValue::List* outputs_ = nullptr;
  std::string id_;
  std::vector<std::string> shown_;
  InferParameters parameters_;
  bool is_all_binary_ = false;
  OwnedBytes owned_;
  std::vector<std::size_t> wanted_;
  std::vector<bool> is_binary_;
};

/// The parameters of a request that are read; `shown` keeps what error texts call those of other
/// types.
ParameterValues ParametersOf(const JsonValue::Object* given, std::vector<std::string>* shown);

}  // namespace recsys

#endif  // RECSYS_SERVER_HTTP_REST_INFER_H_
