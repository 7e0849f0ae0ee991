#include "engine/protocols/torchrec.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "engine/core/servable.h"
#include "engine/protocols/request_stream.h"
#include "wire/owned_bytes.h"

namespace recsys {
namespace {

// Metadata keys for the model and its version.
constexpr char kModelKey[] = "recsys-model";
constexpr char kVersionKey[] = "recsys-version";

/// The memory that a request's inputs point into.
struct Kept {
  std::shared_ptr<const void> message;
  OwnedBytes owned;
  /// Its signature owns the names.
  std::shared_ptr<const Servable> servable;
};

}  // namespace

void TorchrecCall::Load(const Call& call) {
  if (!ReadTorchrecRequest(payload.view, &message_)) {
    throw NoMessage("PredictionRequest");
  }
  if (call.CountMetadata(kModelKey) > 0) model = call.Metadata(kModelKey);
  version = call.Metadata(kVersionKey);
}

void TorchrecCall::Read(const Servable& by) {
  const auto kept = std::make_shared<Kept>();
  NameTorchrecInputs(message_, by.signature(), by.checker().limits(), &kept->owned, &raw);
  kept->message = payload.owner;
  kept->servable = by.weak_from_this().lock();
  payload.owner = kept;
}

Message TorchrecCall::Encode(const Servable& by, const Rows& rows) {
  return WriteTorchrecResponse(by.signature().outputs, {rows.num_rows, rows.values, rows.owner});
}

Service TorchrecService(Gateway& gateway, const std::string& model) {
  const auto make = [&gateway, model] { return std::make_shared<TorchrecCall>(gateway, model); };
  return {"predictor.Predictor", {{"Predict", UnaryMethod(gateway, make)}}};
}

}  // namespace recsys
