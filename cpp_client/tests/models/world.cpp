#include "tests/models/world.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

namespace recsys {
namespace {

constexpr auto kLong = std::chrono::seconds(60);

/// One row, whose bytes live in the payload.
class AskRequest : public Request {
 public:
  explicit AskRequest(float x) {
    constexpr std::int32_t kLength = 1;
    constexpr std::int64_t kId = 3;
    std::string bytes(16, '\0');
    std::memcpy(bytes.data(), &x, sizeof(x));
    std::memcpy(bytes.data() + 4, &kLength, sizeof(kLength));
    std::memcpy(bytes.data() + 8, &kId, sizeof(kId));
    payload = Bytes::Of(std::move(bytes));
    num_bytes = 16;
  }
  std::future<Answer> future() { return promise_.get_future(); }

  void Read(const Hosted&) override {
    raw = {};
    raw.num_rows = 1;
    raw.dense = {{"x", payload.view.substr(0, 4)}};
    raw.sparse = {{"ids", payload.view.substr(4, 4), payload.view.substr(8, 8), {}}};
  }
  Message Encode(const Hosted& by, const Rows& rows) override {
    answer_.version = by.version();
    answer_.y.resize(static_cast<std::size_t>(rows.num_rows));
    std::memcpy(answer_.y.data(), rows.values[0].data(), rows.values[0].size());
    return Message::Of("answer");
  }
  void Done(const Status& status, Message) override {
    answer_.status = status;
    promise_.set_value(answer_);
  }

 private:
  std::promise<Answer> promise_;
  Answer answer_;
};

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

TempFolder::TempFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "models-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = std::filesystem::canonical(name).string();
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void WriteFile(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

std::string AddVersion(const std::string& root, const std::string& model,
                       const std::string& version, int number) {
  const std::string path = root + "/" + model + "/" + version;
  WriteFile(path + "/manifest.json", std::to_string(number));
  return path;
}

HeardLog::HeardLog() {
  SetLogSink([this](LogRecord record) {
    const std::lock_guard<std::mutex> lock(mutex_);
    records_.push_back(std::move(record));
  });
}

HeardLog::~HeardLog() { SetLogSink({}); }

std::vector<LogRecord> HeardLog::records(LogLevel level) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<LogRecord> found;
  for (const LogRecord& record : records_) {
    if (record.level == level) found.push_back(record);
  }
  return found;
}

int HeardLog::Count(const std::string& text) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  int count = 0;
  for (const LogRecord& record : records_) {
    if (record.message.find(text) != std::string::npos) ++count;
  }
  return count;
}

void Gate::Close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_open_ = false;
  num_came_ = 0;
}

void Gate::Open() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_open_ = true;
  changed_.notify_all();
}

void Gate::Pass() {
  std::unique_lock<std::mutex> lock(mutex_);
  ++num_came_;
  changed_.notify_all();
  EXPECT_TRUE(changed_.wait_for(lock, kLong, [this] { return is_open_; }));
}

void Gate::WaitUntilReached(int count) {
  std::unique_lock<std::mutex> lock(mutex_);
  ASSERT_TRUE(changed_.wait_for(lock, kLong, [this, count] { return num_came_ >= count; }));
}

AddModel::AddModel(int number) : number_(number) {
  signature_.dense = {{"x", 1}};
  signature_.sparse = {{"ids", {{"t", 10, IdPolicy::kReject}}, "sum", false}};
  signature_.outputs = {{"y", {}}};
}

AddModel::~AddModel() {
  if (on_freed) on_freed();
}

Outputs AddModel::Predict(const Batch& batch) {
  if (gate) gate->Pass();
  if (on_predict) on_predict(batch.dense[0][0]);
  auto values = std::make_shared<std::vector<float>>();
  for (const float x : batch.dense[0]) values->push_back(x + static_cast<float>(number_));
  Outputs outputs;
  outputs.values.assign(signature_.outputs.size(), Span<const float>(*values));
  outputs.owner = values;
  return outputs;
}

ServedModel::Delta AddModel::PrepareDelta(const std::string& path) {
  const std::string text = ReadFile(path);
  if (text == "unfit") throw Error(ErrorKind::kDelta, "delta.base: got 'a', expected 'b'");
  if (text == "crash") throw std::runtime_error("at 0x7f: " + path);
  Delta delta;
  delta.apply = [this, more = std::stoi(text)] { number_ += more; };
  delta.num_dense_left = text.find("dense") == std::string::npos ? 0 : 3;
  return delta;
}

World::World(ModelSettings settings, std::unique_ptr<ModelSource> source)
    : settings_(std::move(settings)) {
  ManagerParts parts;
  parts.source = source ? std::move(source) : std::make_unique<Repository>(root());
  parts.host = [this](const std::string& name, const std::string& version, const std::string& path,
                      const ModelSettings& how) { return Host(name, version, path, how); };
  parts.settings_of = [this](const std::string&) -> const ModelSettings& { return settings_; };
  parts.set_state = [this](const std::string& model, const std::string& version,
                           const char* state) { metrics_.SetState(model, version, state); };
  parts.changed = [this] {
    if (changed) changed();
  };
  manager_ = std::make_unique<ModelManager>(std::move(parts));
  gateway_ = std::make_unique<Gateway>(*manager_, metrics_, std::vector<Watcher*>());
}

World::~World() {
  manager_->Close(MonotonicSeconds() + 60);
  manager_.reset();
}

void World::Add(const std::string& version, const std::string& model) {
  AddVersion(root(), model, version, 100 * std::stoi(version));
}

void World::Break(const std::string& version) {
  WriteFile(root() + "/small/" + version + "/manifest.json", "broken");
}

void World::Remove(const std::string& path) { std::filesystem::remove_all(root() + "/" + path); }

std::string World::States(const std::string& model) {
  std::string text;
  for (const ModelStatus& status : manager().statuses()) {
    if (status.model != model) continue;
    for (const ModelVersionStatus& version : status.versions) {
      text += (text.empty() ? "" : " ") + version.version + ":" + NameOf(version.state);
    }
  }
  return text;
}

std::string World::Serving(const std::string& model) {
  for (const ModelStatus& status : manager().statuses()) {
    if (status.model == model) return status.serving;
  }
  return "no such model";
}

ModelVersionStatus World::Status(const std::string& version, const std::string& model) {
  for (const ModelStatus& status : manager().statuses()) {
    if (status.model != model) continue;
    for (const ModelVersionStatus& one : status.versions) {
      if (one.version == version) return one;
    }
  }
  ADD_FAILURE() << "there is no version " << version;
  return {};
}

Metrics::Snapshot World::Counts(const std::string& version) {
  for (const Metrics::Snapshot& counts : metrics_.Snapshots()) {
    if (counts.version == version) return counts;
  }
  ADD_FAILURE() << "version " << version << " has no series";
  return {};
}

void World::Settle() {
  const double until_s = MonotonicSeconds() + 60;
  while (States().find("draining") != std::string::npos) {
    ASSERT_LT(MonotonicSeconds(), until_s) << States();
    std::this_thread::yield();
  }
}

std::future<Answer> World::AskLater(float x, const std::string& version, const std::string& model) {
  const auto request = std::make_shared<AskRequest>(x);
  request->version = version;
  request->model = model;
  std::future<Answer> answer = request->future();
  gateway_->Predict(request);
  return answer;
}

Answer World::Ask(float x, const std::string& version, const std::string& model) {
  return AskLater(x, version, model).get();
}

void World::ExpectAnswer(const std::string& version, const std::string& asked) {
  const Answer answer = Ask(5, asked);
  EXPECT_EQ(answer.status.text, "");
  EXPECT_EQ(answer.version, version);
  EXPECT_EQ(answer.y, std::vector<float>{5 + 100 * std::stof(version)});
}

std::vector<std::string> World::loads() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return loads_;
}

std::shared_ptr<Hosted> World::Host(const std::string& name, const std::string& version,
                                    const std::string& path, const ModelSettings& settings) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    loads_.push_back(version);
  }
  load_gate.Pass();
  const std::string text = ReadFile(path + "/manifest.json");
  if (text == "broken") throw Error(ErrorKind::kPartSize, "part 'rows.bin': got 1 bytes");
  auto model = std::make_unique<AddModel>(std::stoi(text));
  const auto found = wrap.find(version);
  if (found != wrap.end()) found->second(*model);
  OpenedModel opened;
  opened.model = std::move(model);
  opened.info.name = name;
  opened.info.version = version;
  opened.info.digest = "digest-" + text;
  opened.info.table_bytes = {{"t", 80}};
  auto hosted = std::make_shared<Hosted>(
      std::move(opened), settings, metrics_,
      [this](Request& request, const recsys::Status& status, Message answer) {
        gateway_->End(request, status, std::move(answer));
      });
  hosted->Open();
  return hosted;
}

std::string ErrorText(ErrorKind kind, const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(kind)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

}  // namespace recsys
