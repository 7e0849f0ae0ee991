#ifndef RECSYS_SERVER_MODELS_MANAGED_VERSION_H_
#define RECSYS_SERVER_MODELS_MANAGED_VERSION_H_

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/models/departure.h"
#include "server/models/files.h"
#include "server/models/status.h"
#include "server/models/workshop.h"

namespace recsys {

/// One version of a model: from the repository into memory and out again
/// (serve/managed_version.py).
///
/// Its way: kAvailable, kLoading, kReady, kDraining, kAvailable; or kFailed. All methods are called
/// with the workshop's monitor held; those that block let it go meanwhile. Changes must not
/// overlap; Status, Close, Leave and Drain may come beside one.
class ManagedVersion {
 public:
  ManagedVersion(std::string model, std::string name, const ModelSettings& settings,
                 Workshop& workshop);
  /// Waits until it has left the memory; without the monitor, unless it is not in memory.
  ~ManagedVersion() = default;
  ManagedVersion(const ManagedVersion&) = delete;
  ManagedVersion& operator=(const ManagedVersion&) = delete;

  const std::string& name() const { return name_; }
  ModelState state() const { return state_; }
  bool is_ready() const { return state_ == ModelState::kReady; }
  /// The model, while it answers.
  const std::shared_ptr<Hosted>& hosted() const { return hosted_; }
  ModelVersionStatus Status() const;

  /// An operator has loaded it beside the routing.
  bool is_kept() const { return is_kept_; }
  void set_is_kept(bool is_kept) { is_kept_ = is_kept; }
  /// An operator has unloaded it: only an operator loads it again.
  void set_is_held_back(bool is_held_back) { is_held_back_ = is_held_back; }
  /// Once it has left the memory, it comes back without the deltas that it has had.
  void ForgetDeltas() { deltas_.clear(); }
  /// Whether it is loaded without being asked for: not what an operator unloaded, nor what failed
  /// as it is.
  bool MayBeTried(const Fingerprint& files) const;

  /// Loads it, warms it up, and applies the deltas that it had. Nothing happens where it is ready.
  /// Blocks. Throws Error: kModelNotFound (it does not lie in the repository), kModelChange (it
  /// cannot be loaded).
  void Load();
  /// It is ready no more; Drain follows, once nothing is routed to it.
  void Leave() { SetStateTo(ModelState::kDraining); }
  /// Answers what was accepted, then frees its memory, in a thread of its own. Nothing may be
  /// routed to it.
  void Drain();
  /// Drains it now, or as soon as it is loaded.
  void Close();
  /// Ready once it has left the memory; not valid where it never did. To be waited for without the
  /// monitor.
  std::shared_future<void> has_left() const { return has_left_; }
  /// Waits until it has left the memory, if it is about to.
  void WaitUntilLeft();
  /// Exchanges rows, between batches. Blocks. Throws Error: kModelNotFound (no such file), kRequest
  /// (its name is none), kModelChange (not ready, or the delta does not fit); nothing has changed
  /// then.
  void ApplyDelta(const std::string& file_name);

 private:
  struct Found;
  struct Opened;

  Found Find() const;
  Opened Open(const std::string& path, const std::string& digest,
              std::vector<std::string> deltas) const;
  [[noreturn]] void Failed(const Fingerprint& files);
  void Exchange(Hosted& hosted, const std::string& file_name, const std::string& path) const;
  /// `patience_s`: how long it waits for those who still hold the version.
  void LeaveMemory(std::shared_ptr<Hosted> hosted, std::shared_ptr<Departure> departure,
                   double patience_s);
  void SetStateTo(ModelState state);
  /// "model M, version V".
  std::string Title() const;

  const std::string model_;
  const std::string name_;
  const ModelSettings settings_;
  Workshop& shop_;
  ModelState state_ = ModelState::kAvailable;
  std::shared_ptr<Hosted> hosted_;
  std::shared_ptr<Departure> departure_;
  bool is_kept_ = false;
  bool is_held_back_ = false;
  bool is_closed_ = false;
  std::string reason_;
  bool is_unusable_ = false;
  /// Its files when it failed: it is not tried again by itself before they change.
  std::optional<Fingerprint> failed_as_;
  std::string digest_;
  /// Since an operator loaded it: they are applied again where it comes back for a rollback.
  std::vector<std::string> deltas_;
  /// The last member: its thread ends before the others go.
  std::shared_future<void> has_left_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_MODELS_MANAGED_VERSION_H_
