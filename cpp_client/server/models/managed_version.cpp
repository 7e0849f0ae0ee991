#include "server/models/managed_version.h"

#include <mutex>
#include <system_error>
#include <utility>

#include "base/allocator.h"
#include "base/log.h"
#include "base/text.h"
#include "recsys/error.h"
#include "server/models/reason.h"

namespace recsys {
namespace {

// How long memory may wait for requests that were answered to let their version go.
constexpr double kPatienceS = 1.0;

std::string VersionOf(const std::string& version, const std::string& model) {
  return "version " + Repr(version) + " of model " + Repr(model);
}

}  // namespace

struct ManagedVersion::Found {
  std::string path;
  Fingerprint files;
};

struct ManagedVersion::Opened {
  std::shared_ptr<Hosted> hosted;
  std::vector<std::string> deltas;
};

ManagedVersion::ManagedVersion(std::string model, std::string name, const ModelSettings& settings,
                               Workshop& workshop)
    : model_(std::move(model)), name_(std::move(name)), settings_(settings), shop_(workshop) {}

ModelVersionStatus ManagedVersion::Status() const {
  ModelVersionStatus status;
  status.version = name_;
  status.state = state_;
  status.reason = reason_;
  status.is_unusable = is_unusable_;
  if (hosted_) {
    status.digest = digest_;
    status.deltas = hosted_->deltas();
    status.table_bytes = hosted_->info().all_table_bytes();
  }
  return status;
}

bool ManagedVersion::MayBeTried(const Fingerprint& files) const {
  return !is_held_back_ && failed_as_ != files;
}

void ManagedVersion::Load() {
  WaitUntilLeft();
  if (is_ready()) return;
  const Found found = shop_.monitor.Blocking([this] { return Find(); });
  Opened opened;
  {
    const auto turn =
        shop_.monitor.Blocking([this] { return std::unique_lock<Turns>(shop_.loading); });
    SetStateTo(ModelState::kLoading);
    try {
      opened = shop_.monitor.Blocking([this, &found, digest = digest_, deltas = deltas_]() mutable {
        return Open(found.path, digest, std::move(deltas));
      });
    } catch (...) {
      Failed(found.files);
    }
  }
  failed_as_.reset();
  reason_.clear();
  is_unusable_ = false;
  digest_ = opened.hosted->info().digest;
  deltas_ = std::move(opened.deltas);
  departure_ = std::make_shared<Departure>();
  hosted_ = departure_->Lend(std::move(opened.hosted));
  SetStateTo(ModelState::kReady);
  Log(LogLevel::kInfo, Title() + " is ready");
  if (is_closed_) {
    Drain();
    WaitUntilLeft();
    throw Error(ErrorKind::kDraining, "the server is stopping");
  }
}

ManagedVersion::Found ManagedVersion::Find() const {
  Found found;
  try {
    found.path = shop_.source->Path(model_, name_);
  } catch (const std::system_error&) {
    throw Error(ErrorKind::kModelChange, ReasonOfCurrentException(Title()).text);
  }
  found.files = FingerprintOf(found.path);
  return found;
}

ManagedVersion::Opened ManagedVersion::Open(const std::string& path, const std::string& digest,
                                            std::vector<std::string> deltas) const {
  Opened opened;
  {
    const MemoryApart memory_apart;
    opened.hosted = shop_.host(model_, name_, path, settings_);
  }
  if (opened.hosted->info().digest == digest) opened.deltas = std::move(deltas);
  try {
    for (const std::string& file_name : opened.deltas) {
      Exchange(*opened.hosted, file_name, shop_.source->DeltaPath(model_, file_name));
    }
  } catch (...) {
    opened.hosted->Close();
    throw;
  }
  ReturnMemory();  // What it took to load it, such as a file's bytes, goes back.
  return opened;
}

void ManagedVersion::Failed(const Fingerprint& files) {
  const Reason reason =
      ReasonOfCurrentException("model " + model_ + ", version " + name_ + ", cannot be loaded");
  failed_as_ = files;
  reason_ = reason.text;
  is_unusable_ = reason.is_expected;
  SetStateTo(ModelState::kFailed);
  throw Error(ErrorKind::kModelChange,
              VersionOf(name_, model_) + " cannot be loaded: " + reason.text);
}

void ManagedVersion::Drain() {
  if (!hosted_) return;
  SetStateTo(ModelState::kDraining);
  // Where the server ends, its routes hold the version to the last.
  const double patience_s = is_closed_ ? 0 : kPatienceS;
  has_left_ = std::async(std::launch::async, [this, patience_s, hosted = std::move(hosted_),
                                              departure = std::move(departure_)]() mutable {
                LeaveMemory(std::move(hosted), std::move(departure), patience_s);
              }).share();
  hosted_ = nullptr;
}

void ManagedVersion::Close() {
  is_closed_ = true;
  Drain();
}

void ManagedVersion::WaitUntilLeft() {
  if (!has_left_.valid()) return;
  shop_.monitor.Blocking([has_left = has_left_] { has_left.wait(); });
}

void ManagedVersion::LeaveMemory(std::shared_ptr<Hosted> hosted,
                                 std::shared_ptr<Departure> departure, double patience_s) {
  try {
    hosted->Close();
  } catch (...) {
    ReasonOfCurrentException(Title() + " could not be closed");
  }
  hosted.reset();
  hosted = departure->Await(patience_s);
  {
    const ReturningMemory returning_memory;
    hosted.reset();
  }
  {
    const std::lock_guard<Monitor> lock(shop_.monitor);
    SetStateTo(ModelState::kAvailable);
  }
  Log(LogLevel::kInfo, Title() + " has left the memory");
}

void ManagedVersion::ApplyDelta(const std::string& file_name) {
  const std::shared_ptr<Hosted> hosted = hosted_;
  if (!hosted || !is_ready()) {
    throw Error(ErrorKind::kModelChange,
                VersionOf(name_, model_) + " is not ready to take a delta");
  }
  const std::string path = shop_.monitor.Blocking(
      [this, &file_name] { return shop_.source->DeltaPath(model_, file_name); });
  try {
    shop_.monitor.Blocking([&] { Exchange(*hosted, file_name, path); });
  } catch (...) {
    hosted->metrics().DeltaFailed();
    const Reason reason =
        ReasonOfCurrentException(Title() + ": delta " + file_name + " cannot be applied");
    throw Error(ErrorKind::kModelChange,
                "delta " + Repr(file_name) + " cannot be applied: " + reason.text);
  }
  deltas_.push_back(file_name);
  Log(LogLevel::kInfo, Title() + ": delta " + file_name + " is applied");
}

void ManagedVersion::Exchange(Hosted& hosted, const std::string& file_name,
                              const std::string& path) const {
  const ServedModel::Delta delta = hosted.model().PrepareDelta(path);
  hosted.RunBetweenBatches(delta.apply);
  hosted.AddDelta(file_name);
  hosted.metrics().DeltaApplied();
  if (delta.num_dense_left > 0) {
    Log(LogLevel::kWarning,
        Title() + ": delta " + file_name + " leaves " + std::to_string(delta.num_dense_left) +
            " dense weights as they were exported, although they had changed when it was made; a "
            "new version brings them");
  }
}

void ManagedVersion::SetStateTo(ModelState state) {
  state_ = state;
  if (shop_.set_state) shop_.set_state(model_, name_, NameOf(state));
}

std::string ManagedVersion::Title() const { return "model " + model_ + ", version " + name_; }

}  // namespace recsys
