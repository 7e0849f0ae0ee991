#ifndef RECSYS_WIRE_TORCHREC_REQUEST_H_
#define RECSYS_WIRE_TORCHREC_REQUEST_H_

// TorchRec's wire format: requests without names, in the signature's order, with all IDs of a kind
// in one byte string (serve/engine/reference/protocols/torchrec.py). Shape letters: B rows, F
// sparse inputs of one kind, N IDs.

#include <cstdint>
#include <string_view>

#include "base/bytes.h"
#include "recsys/request.h"
#include "recsys/signature.h"
#include "wire/owned_bytes.h"
#include "wire/writer.h"

namespace recsys {

/// predictor.FloatFeatures (which has neither lengths nor weights) or SparseFeatures.
struct TorchrecFeatures {
  std::int32_t num_features = 0;
  std::string_view lengths;
  std::string_view values;
  std::string_view weights;
};

/// A predictor.PredictionRequest: views into its bytes.
struct TorchrecRequest {
  std::int32_t batch_size = 0;
  TorchrecFeatures floats;
  TorchrecFeatures id_list;
  TorchrecFeatures id_score_list;
  TorchrecFeatures embedding;
  TorchrecFeatures unary;
};

/// Reads a message in place; returns false if it is malformed.
bool ReadTorchrecRequest(std::string_view message, TorchrecRequest* request);

/// Assigns a request's parts to the signature's inputs. `raw` points into the bytes of `request`
/// and into `owned`, and uses the signature's own names. Throws Error (kRequest, kRequestTooLarge)
/// if the parts do not match the signature.
void NameTorchrecInputs(const TorchrecRequest& request, const Signature& signature,
                        const RequestLimits& limits, OwnedBytes* owned, RawRequest* raw);

/// Serializes a predictor.PredictionResponse: each output under its name, the first also as
/// "default" unless an output has this name.
Message WriteTorchrecResponse(const std::vector<Output>& outputs, const AnswerRows& rows);

}  // namespace recsys

#endif  // RECSYS_WIRE_TORCHREC_REQUEST_H_
