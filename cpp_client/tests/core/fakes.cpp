#include "tests/core/fakes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "recsys/error.h"

namespace recsys {
namespace {

constexpr auto kLong = std::chrono::seconds(60);

template <typename T>
std::string_view ViewOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// A model that somebody else keeps.
class ModelOf : public ServedModel {
 public:
  explicit ModelOf(std::shared_ptr<SumModel> model) : model_(std::move(model)) {}
  const Signature& signature() const override { return model_->signature(); }
  Outputs Predict(const Batch& batch) override { return model_->Predict(batch); }
  bool shares_contexts() const override { return model_->shares_contexts(); }
  Delta PrepareDelta(const std::string& path) override { return model_->PrepareDelta(path); }

 private:
  const std::shared_ptr<SumModel> model_;
};

}  // namespace

void Answers::Take(const std::string& name, Answer answer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  answers_.emplace_back(name, std::move(answer));
  changed_.notify_all();
}

void Answers::Wait(int count) {
  std::unique_lock<std::mutex> lock(mutex_);
  const bool came = changed_.wait_for(
      lock, kLong, [&] { return answers_.size() >= static_cast<std::size_t>(count); });
  ASSERT_TRUE(came) << answers_.size() << " of " << count << " answers came";
}

int Answers::num_done() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(answers_.size());
}

Answers::Answer Answers::Of(const std::string& name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Answer* found = nullptr;
  for (const auto& [one, answer] : answers_) {
    if (one != name) continue;
    EXPECT_EQ(found, nullptr) << name << " was Done twice";
    found = &answer;
  }
  EXPECT_NE(found, nullptr) << name << " was never Done";
  return found == nullptr ? Answer{} : *found;
}

std::vector<std::string> Answers::names() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, answer] : answers_) names.push_back(name);
  return names;
}

SumRequest::SumRequest(Answers& answers, std::string name, const Ids& ids, bool has_context)
    : answers_(answers), name_(std::move(name)), has_context_(has_context) {
  request_id = name_;
  raw.num_rows = static_cast<std::int64_t>(ids.size());
  std::int64_t first_sum = 0;
  for (std::size_t row = 0; row < ids.size(); ++row) {
    std::int64_t sum = 0;
    for (const std::int64_t id : ids[row]) sum += id;
    if (row == 0) first_sum = sum;
    if (row == 0 || !has_context) {
      lengths_.push_back(static_cast<std::int32_t>(ids[row].size()));
      values_.insert(values_.end(), ids[row].begin(), ids[row].end());
    }
    dense_.push_back(0.25F * static_cast<float>(row));
    expected_.push_back(dense_.back() + static_cast<float>(has_context ? first_sum : sum));
  }
  num_bytes = static_cast<std::int64_t>(8 * values_.size() + 4 * lengths_.size());
}

void SumRequest::Read(const Servable& by) {
  raw.dense = {{"d", ViewOf(dense_)}};
  std::vector<RawSparse> sparse = {{"id", ViewOf(lengths_), ViewOf(values_), {}}};
  (has_context_ ? raw.context_sparse : raw.sparse) = std::move(sparse);
  if (on_read) on_read(by);
}

Message SumRequest::Encode(const Servable&, const Rows& rows) {
  if (on_encode) return on_encode(rows);
  return Message::Of(std::string(rows.values.at(0)));
}

void SumRequest::Done(const Status& status, Message answer) {
  const std::string bytes = answer.Joined();
  std::vector<float> scores(bytes.size() / sizeof(float));
  if (!bytes.empty()) std::memcpy(scores.data(), bytes.data(), bytes.size());
  answers_.Take(name_, {status, std::move(scores), times});
}

Signature SumSignature(bool has_context) {
  Signature signature;
  signature.dense = {{"d", 1}};
  signature.sparse = {{"id", {{"table", 1'000'000, IdPolicy::kReject}}, "sum", false}};
  signature.outputs = {{"score", {}}};
  if (has_context) signature.context = {"id"};
  return signature;
}

std::vector<float> SumsOf(const Batch& batch) {
  const SparseBatch& sparse = batch.is_ranking ? batch.context : batch.sparse;
  std::vector<float> bags;
  const std::int64_t* value = sparse.values.data();
  for (const std::int64_t length : sparse.lengths) {
    float sum = 0;
    for (std::int64_t i = 0; i < length; ++i) sum += static_cast<float>(*value++);
    bags.push_back(sum);
  }
  std::vector<float> sums;
  for (std::size_t row = 0; row < static_cast<std::size_t>(batch.num_rows); ++row) {
    const auto bag = batch.is_ranking ? static_cast<std::size_t>(batch.row_context[row]) : row;
    sums.push_back(batch.dense[0][row] + bags.at(bag));
  }
  return sums;
}

Outputs SumModel::Predict(const Batch& batch) {
  PassGate(batch);
  const SharedContext::Values context = batch.shared == nullptr ? nullptr : ContextOf(batch);
  if (on_predict) on_predict(batch);
  auto sums = std::make_shared<std::vector<float>>(SumsOf(batch));
  if (context != nullptr) {
    std::transform(batch.dense[0].begin(), batch.dense[0].end(), sums->begin(),
                   [&](float number) { return number + context[0]; });
  }
  if (returns_too_little.load()) sums->pop_back();
  Outputs outputs;
  outputs.values.emplace_back(sums->data(), sums->size());
  outputs.owner = std::move(sums);
  return outputs;
}

SharedContext::Values SumModel::ContextOf(const Batch& batch) const {
  if (const SharedContext::Values found = batch.shared->Find()) return found;
  on_context();
  float sum = 0;
  for (const std::int64_t id : batch.context.values) sum += static_cast<float>(id);
  SharedContext::Values context(new float[1]{sum});
  batch.shared->Add(context);
  return context;
}

void SumModel::PassGate(const Batch& batch) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!is_watched_) return;
  batches_.push_back(batch.num_rows);
  changed_.notify_all();
  EXPECT_TRUE(changed_.wait_for(lock, kLong, [this] { return is_open_; }));
}

void SumModel::CloseGate() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_open_ = false;
  is_watched_ = true;
}

void SumModel::OpenGate() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_open_ = true;
  changed_.notify_all();
}

void SumModel::WaitUntilStarted(int count) {
  std::unique_lock<std::mutex> lock(mutex_);
  ASSERT_TRUE(changed_.wait_for(
      lock, kLong, [&] { return batches_.size() >= static_cast<std::size_t>(count); }));
}

std::vector<std::int64_t> SumModel::batches() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return batches_;
}

Route OneRoute::Find(const RouteQuery& query) const {
  if (on_find) on_find();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!query.model.empty() && query.model != "sum") {
    throw Error(ErrorKind::kModelNotFound, "no such model");
  }
  if (route_.primary == nullptr) throw Error(ErrorKind::kNotReady, "not ready");
  return route_;
}

void OneRoute::Set(Route route) {
  const std::lock_guard<std::mutex> lock(mutex_);
  route_ = std::move(route);
}

Opened HostSum(Servable::Deliver deliver, const VersionSettings& settings,
               const std::string& version, bool has_context, Clock clock) {
  Opened opened;
  opened.model = std::make_shared<SumModel>(has_context);
  OpenedModel parts;
  parts.model = std::make_unique<ModelOf>(opened.model);
  parts.info.name = "sum";
  parts.info.version = version;
  parts.info.target = "fake";
  parts.info.table_bytes = {{"table", 4'000'000}};
  opened.servable =
      std::make_shared<Servable>(std::move(parts), settings, std::move(deliver), std::move(clock));
  return opened;
}

HeardLog::HeardLog() {
  SetLogSink([this](const LogRecord& record) {
    const std::lock_guard<std::mutex> lock(mutex_);
    text_ += std::string(NameOf(record.level)) + " " + record.message + "\n";
    if (!record.exception.empty()) text_ += record.exception + "\n";
  });
}

HeardLog::~HeardLog() { SetLogSink({}); }

std::string HeardLog::text() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return text_;
}

}  // namespace recsys
