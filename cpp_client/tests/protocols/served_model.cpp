#include "tests/protocols/served_model.h"

namespace recsys {

Outputs SummingModel::Predict(const Batch& batch) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return is_open_; });
  }
  struct Values {
    std::vector<float> score, vectors;
  };
  const auto num_rows = static_cast<std::size_t>(batch.num_rows);
  auto values = std::make_shared<Values>();
  values->score.resize(num_rows);
  for (std::size_t i = 0; i < signature_.dense.size(); ++i) {
    const auto width = static_cast<std::size_t>(signature_.dense[i].width);
    for (std::size_t at = 0; at < num_rows * width; ++at) {
      values->score[at / width] += batch.dense[i][at];
    }
  }
  const std::int64_t* id = batch.sparse.values.data();
  for (std::size_t bag = 0; bag < batch.sparse.lengths.size(); ++bag) {
    for (std::int64_t i = 0; i < batch.sparse.lengths[bag]; ++i) {
      values->score[bag % num_rows] += static_cast<float>(*id++);
    }
  }
  for (const float score : values->score) {
    for (int factor = 1; factor <= 6; ++factor) {
      values->vectors.push_back(score * static_cast<float>(factor));
    }
  }
  Outputs outputs;
  outputs.values = {values->score, values->vectors};
  outputs.owner = values;
  return outputs;
}

void SummingModel::Shut() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_open_ = false;
}

void SummingModel::Open() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_open_ = true;
  changed_.notify_all();
}

Route SmallRouter::Find(const RouteQuery& query) const {
  if ((!query.model.empty() && query.model != "small") ||
      (!query.version.empty() && query.version != "1")) {
    throw Error(ErrorKind::kModelNotFound, "no such model");
  }
  return {servable, nullptr};
}

ServedTest::ServedTest() {
  OpenedModel opened;
  auto model = std::make_unique<SummingModel>();
  model_ = model.get();
  opened.model = std::move(model);
  opened.info.name = "small";
  opened.info.version = "1";
  opened.info.digest = "d1";
  router_.servable =
      std::make_shared<Servable>(std::move(opened), VersionSettings{},
                                 [this](Request& request, const Status& status, Message answer) {
                                   gateway_.End(request, status, std::move(answer));
                                 });
  router_.servable->Open();
}

std::pair<Status, std::string> ServedTest::Call(const Service& service, const std::string& method,
                                                const std::string& message,
                                                const CallFacts& facts) {
  const auto call = std::make_shared<FakeUnaryCall>(facts);
  const auto handler = service.methods.at(method).unary(call, Bytes::Of(message));
  return call->Wait();
}

}  // namespace recsys
