#include "server/watch/watchers.h"

#include <utility>

#include "server/core/hosted.h"

namespace recsys {

/// A sample of the requests, to a file.
class Watchers::CaptureWatcher : public Watcher {
 public:
  explicit CaptureWatcher(Capture& capture) : capture_(capture) {}

  void Accepted(const Request& request) override {
    capture_.Offer(request.raw, request.hosted->name(), request.hosted->version());
  }
  void Ended(const Request& /*request*/, const char* /*outcome*/,
             const Status& /*status*/) override {}

 private:
  Capture& capture_;
};

Watchers::Watchers(const ServerSettings& settings, Metrics& metrics, ReadCounts log_counts) {
  if (log_counts) metrics.Watch("log", std::move(log_counts));
  if (settings.capture) {
    capture_ = std::make_shared<Capture>(*settings.capture);
    // The page may be asked for after the last request.
    metrics.Watch("capture", [capture = capture_] { return capture->Counts(); });
    capture_watcher_ = std::make_unique<CaptureWatcher>(*capture_);
  }
  if (settings.log.requests != "none") request_log_ = std::make_unique<RequestLog>(settings.log);
}

Watchers::~Watchers() { Close(); }

void Watchers::Close() {
  if (capture_ != nullptr) capture_->Close();
}

std::vector<Watcher*> Watchers::all() const {
  std::vector<Watcher*> watchers;
  if (capture_watcher_ != nullptr) watchers.push_back(capture_watcher_.get());
  if (request_log_ != nullptr) watchers.push_back(request_log_.get());
  return watchers;
}

}  // namespace recsys
