#ifndef RECSYS_SERVER_PROTOCOLS_RECSYS_V1_H_
#define RECSYS_SERVER_PROTOCOLS_RECSYS_V1_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "server/core/hosted.h"
#include "server/protocols/protocol_request.h"
#include "wire/predict_request.h"

namespace recsys {

/// A PredictRequest of recsys.v1, read in place.
class PredictCall final : public ProtocolRequest {
 public:
  using ProtocolRequest::ProtocolRequest;

  void Load(const Call& call, Bytes message) override;
  void Read(const Hosted& hosted) override;
  Message Encode(const Hosted& hosted, const Rows& rows) override;
  Message OnStream(const Status& status, Message answer) override;

 private:
  // Whether the message has more inputs than were kept of it, and how many those are.
  bool is_cut_ = false;
  std::size_t num_kept_ = kMaxInputsKept;
};

/// A serialized ModelMetadata: all that a client needs to make a valid request (serve/metadata.py).
std::string ModelMetadataOf(const Hosted& hosted, std::int64_t max_message_bytes);

}  // namespace recsys

#endif  // RECSYS_SERVER_PROTOCOLS_RECSYS_V1_H_
