#ifndef RECSYS_TESTS_MODELS_WORLD_H_
#define RECSYS_TESTS_MODELS_WORLD_H_

// A repository of fake artifacts, and a manager and a gateway that serve it.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "recsys/error.h"
#include "server/core/gateway.h"
#include "server/core/hosted.h"
#include "server/models/manager.h"
#include "server/models/repository.h"
#include "server/observe/snapshot.h"

namespace recsys {

/// A folder that goes with it.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void WriteFile(const std::string& path, const std::string& text);
/// An artifact whose model adds `number` to what it is given; returns its path.
std::string AddVersion(const std::string& root, const std::string& model,
                       const std::string& version, int number);
/// Of text, until this goes.
class HeardLog {
 public:
  HeardLog();
  ~HeardLog();
  HeardLog(const HeardLog&) = delete;
  HeardLog& operator=(const HeardLog&) = delete;
  std::vector<LogRecord> records(LogLevel level) const;
  /// How many messages hold the text.
  int Count(const std::string& text) const;

 private:
  mutable std::mutex mutex_;
  std::vector<LogRecord> records_;
};

/// Whoever comes waits while it is closed. Thread-safe.
class Gate {
 public:
  void Close();
  void Open();
  void Pass();
  /// Until so many have come since it was closed.
  void WaitUntilReached(int count = 1);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = true;
  int num_came_ = 0;
};

/// Dense "x" [B, 1] and sparse "ids"; output "y" [B] = x + number.
class AddModel : public ServedModel {
 public:
  explicit AddModel(int number);
  ~AddModel() override;
  AddModel(const AddModel&) = delete;
  AddModel& operator=(const AddModel&) = delete;

  const Signature& signature() const override { return signature_; }
  std::string target_name() const override { return "fake"; }
  Outputs Predict(const Batch& batch) override;
  /// The file says by how much the number grows; or "unfit"; "+dense" behind it leaves 3 dense
  /// weights.
  Delta PrepareDelta(const std::string& path) override;

  // To be set before it runs.
  Signature signature_;
  std::shared_ptr<Gate> gate;
  /// Called with the first x of each batch; may throw.
  std::function<void(float)> on_predict;
  std::function<void()> on_freed;

 private:
  int number_;
};

/// How one request ended.
struct Answer {
  Status status;
  std::string version;
  std::vector<float> y;
};

/// Puts a server's middle together.
class World {
 public:
  explicit World(ModelSettings settings = {}, std::unique_ptr<ModelSource> source = nullptr);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const std::string& root() const { return root_.path(); }
  void Add(const std::string& version, const std::string& model = "small");
  void Break(const std::string& version);
  void Remove(const std::string& path);

  ModelManager& manager() { return *manager_; }
  Gateway& gateway() { return *gateway_; }
  Metrics& metrics() { return metrics_; }
  /// "1:ready 2:available".
  std::string States(const std::string& model = "small");
  std::string Serving(const std::string& model = "small");
  ModelVersionStatus Status(const std::string& version, const std::string& model = "small");
  /// Of a version that is loaded.
  Metrics::Snapshot Counts(const std::string& version);
  /// Waits until no version drains.
  void Settle();

  std::future<Answer> AskLater(float x, const std::string& version = "",
                               const std::string& model = "");
  Answer Ask(float x, const std::string& version = "", const std::string& model = "");
  /// That the model's answer comes from this version.
  void ExpectAnswer(const std::string& version, const std::string& asked = "");

  /// Versions in the order in which they were loaded.
  std::vector<std::string> loads();
  /// Closed, it holds every load.
  Gate load_gate;
  /// What is done to a version's model before it is hosted; may throw. Set while nothing is loaded.
  std::map<std::string, std::function<void(AddModel&)>> wrap;
  /// Called whenever something has changed.
  std::function<void()> changed;

 private:
  std::shared_ptr<Hosted> Host(const std::string& name, const std::string& version,
                               const std::string& path, const ModelSettings& settings);

  TempFolder root_;
  Metrics metrics_;
  const ModelSettings settings_;
  std::mutex mutex_;
  std::vector<std::string> loads_;
  std::unique_ptr<ModelManager> manager_;
  std::unique_ptr<Gateway> gateway_;
};

/// The text of the error that `function` throws, if it is of that kind.
std::string ErrorText(ErrorKind kind, const std::function<void()>& function);

}  // namespace recsys

#endif  // RECSYS_TESTS_MODELS_WORLD_H_
