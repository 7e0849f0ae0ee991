// The runtime library at the end of a pipe, for tests in other languages: one JSON object a line
// in, one a line out. Bytes are hexadecimal digits. tests/native/tool.py has the commands.

#include <atomic>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "format/json/json.h"
#include "recsys/batch_writer.h"
#include "recsys/error.h"
#include "recsys/model.h"

namespace {

using recsys::Json;

int DigitOf(char digit) { return digit <= '9' ? digit - '0' : digit - 'a' + 10; }

std::string BytesOf(const std::string& digits) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes += static_cast<char>(DigitOf(digits[i]) * 16 + DigitOf(digits[i + 1]));
  }
  return bytes;
}

std::string DigitsOf(const void* data, std::size_t num_bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string digits;
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < num_bytes; ++i) {
    digits += kDigits[bytes[i] >> 4];
    digits += kDigits[bytes[i] & 15];
  }
  return digits;
}

/// A request, and the memory that its views point into.
class Request {
 public:
  explicit Request(const Json& data) {
    raw_.num_rows = data["num_rows"].get<std::int64_t>();
    for (const Json& input : data["dense"]) raw_.dense.push_back(Dense(input));
    for (const Json& input : data["sparse"]) raw_.sparse.push_back(Sparse(input));
    for (const Json& input : data["context_dense"]) raw_.context_dense.push_back(Dense(input));
    for (const Json& input : data["context_sparse"]) raw_.context_sparse.push_back(Sparse(input));
  }
  const recsys::RawRequest& raw() const { return raw_; }

 private:
  std::string_view Keep(std::string text) {
    kept_.push_back(std::make_unique<std::string>(std::move(text)));
    return *kept_.back();
  }
  recsys::RawDense Dense(const Json& input) {
    return {Keep(input["name"].get<std::string>()),
            Keep(BytesOf(input["values"].get<std::string>()))};
  }
  recsys::RawSparse Sparse(const Json& input) {
    texts_.push_back(std::make_unique<std::vector<std::string_view>>());
    for (const Json& text : input["strings"]) {
      texts_.back()->push_back(Keep(BytesOf(text.get<std::string>())));
    }
    return {
        Keep(input["name"].get<std::string>()), Keep(BytesOf(input["lengths"].get<std::string>())),
        Keep(BytesOf(input["values"].get<std::string>())),
        Keep(BytesOf(input["weights"].get<std::string>())), recsys::RawTexts::Of(*texts_.back())};
  }

  recsys::RawRequest raw_;
  std::vector<std::unique_ptr<std::string>> kept_;
  std::vector<std::unique_ptr<std::vector<std::string_view>>> texts_;
};

Json Described(const recsys::ModelDescription& found) {
  Json tables = Json::object();
  for (const auto& [table, num_bytes] : found.table_bytes) tables[table] = num_bytes;
  return {{"name", found.name},
          {"digest", found.digest},
          {"target", found.target},
          {"torch_version", found.torch_version},
          {"fbgemm_version", found.fbgemm_version},
          {"table_bytes", tables},
          {"rows_pages",
           {{"resident_bytes", found.rows_pages.resident_bytes},
            {"huge_bytes", found.rows_pages.huge_bytes},
            {"locked_bytes", found.rows_pages.locked_bytes}}}};
}

class Tool {
 public:
  Json Run(const Json& command) {
    const std::string name = command["command"].get<std::string>();
    const auto text = [&](const char* key) { return command.value(key, std::string()); };
    if (name == "open") return Open(command);
    if (name == "close") {
      model_.reset();
      return Json::object();
    }
    if (name == "predict") return Predict(command["requests"]);
    if (name == "predict_in_threads") return PredictInThreads(command["requests"]);
    if (name == "predict_while_applying") {
      return PredictWhileApplying(command["batches"], command["paths"]);
    }
    if (name == "predict_one") return Written(model_->Predict(Request(command["request"]).raw()));
    if (name == "describe") return Described(recsys::DescribeArtifact(text("path")));
    if (name == "check") {
      recsys::CheckArtifact(text("path"), text("target"));
      return Json::object();
    }
    if (name == "prepare") {
      prepared_ = model_->PrepareDelta(text("path"));
      return {{"num_dense_left", recsys::Model::NumDenseLeft(*prepared_)}};
    }
    if (name == "context_cache") {
      const recsys::ContextCacheCounts counts = model_->context_cache();
      return {{"hits", counts.hits},
              {"misses", counts.misses},
              {"evictions", counts.evictions},
              {"entries", counts.entries},
              {"bytes", counts.bytes}};
    }
    if (name == "outside_rows") {
      const recsys::OutsideRowsCounts counts = model_->outside_rows();
      return {{"hits", counts.hits},         {"misses", counts.misses},
              {"failures", counts.failures}, {"hedged", counts.hedged},
              {"zeros", counts.zeros},       {"cache_bytes", counts.cache_bytes}};
    }
    if (name == "apply") model_->ApplyDelta(*prepared_);
    return {{"rows_state", model_->rows_state()}};
  }

 private:
  Json Open(const Json& command) {
    recsys::ModelOptions options;
    options.target = command.value("target", std::string());
    options.verify_checksums = command.value("verify_checksums", true);
    options.copy_rows = command.value("copy_rows", false);
    options.lock_rows = command.value("lock_rows", false);
    options.numa = command.value("numa", std::string());
    options.random_access = command.value("random_access", false);
    options.fbgemm_path = command.value("fbgemm_path", std::string());
    options.scripted = command.value("scripted", false);
    options.context_cache_bytes = command.value("context_cache_bytes", std::int64_t{0});
    using Names = std::vector<std::string>;
    options.outside.nodes = command.value("rows", Names());
    options.outside.replicas = command.value("rows_replicas", Names());
    options.outside.over_bytes = command.value("rows_over_bytes", std::int64_t{0});
    options.outside.cache_bytes = command.value("rows_cache_bytes", std::int64_t{1} << 20);
    options.outside.deadline_ms = command.value("rows_deadline_ms", std::int64_t{2000});
    options.outside.hedge_ms = command.value("rows_hedge_ms", std::int64_t{5});
    options.outside.zero_tables = command.value("rows_zero", Names());
    model_.emplace(recsys::Model::Open(command["path"].get<std::string>(), options));
    return Described(model_->description());
  }

  Json Predict(const Json& requests) const {
    constexpr std::int64_t kMany = std::int64_t{1} << 40;
    const recsys::RequestChecker checker(model_->signature(), {kMany, kMany, kMany});
    std::vector<std::unique_ptr<Request>> raw;
    std::vector<recsys::CheckedRequest> checked(requests.size());
    std::vector<const recsys::CheckedRequest*> pointers;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      raw.push_back(std::make_unique<Request>(requests[i]));
      checker.Check(raw.back()->raw(), &checked[i]);
      pointers.push_back(&checked[i]);
    }
    recsys::BatchWriter writer(model_->signature());
    return Written(model_->Predict(writer.Write({pointers.data(), pointers.size()})));
  }

  /// The same batch in several threads at once, again and again: what it says, and how often it
  /// said something else.
  Json PredictInThreads(const Json& requests) const {
    const Json expected = Predict(requests);
    std::atomic<int> num_different{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int time = 0; time < 200; ++time) {
          if (Predict(requests) != expected) ++num_different;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return {{"outputs", expected}, {"num_different", num_different.load()}};
  }

  /// Batches in several threads at once, and deltas between them, as an executor applies them: by
  /// the state of the rows, what was said of each batch, and how often something else was said.
  Json PredictWhileApplying(const Json& batches, const Json& paths) {
    constexpr int kBatchesOfState = 60;
    // Readers wait for a writer that waits.
    std::mutex turn, mutex;
    std::shared_mutex rows;
    Json answers = Json::object();
    std::atomic<int> num_different{0}, num_batches{0};
    std::atomic<bool> is_done{false};
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < 3; ++i) {
      threads.emplace_back([&, i] {
        for (std::size_t time = i; !is_done; ++time, ++num_batches) {
          const std::string number = std::to_string(time % batches.size());
          std::unique_lock<std::mutex> next(turn);
          const std::shared_lock<std::shared_mutex> reading(rows);
          next.unlock();
          const Json said = Predict(batches[time % batches.size()]);
          const std::lock_guard<std::mutex> lock(mutex);
          Json& known = answers[model_->rows_state()][number];
          if (known.is_null()) known = said;
          if (known != said) ++num_different;
        }
      });
    }
    const auto wait = [&] {
      for (const int before = num_batches; num_batches < before + kBatchesOfState;) {
        std::this_thread::yield();
      }
    };
    for (const Json& path : paths) {
      wait();
      const auto prepared = model_->PrepareDelta(path.get<std::string>());
      const std::lock_guard<std::mutex> next(turn);
      const std::unique_lock<std::shared_mutex> writing(rows);
      model_->ApplyDelta(*prepared);
    }
    wait();
    is_done = true;
    for (std::thread& thread : threads) thread.join();
    return {{"answers", answers}, {"num_different", num_different.load()}};
  }

  Json Written(const recsys::Outputs& outputs) const {
    Json data = Json::object();
    for (std::size_t i = 0; i < outputs.values.size(); ++i) {
      const recsys::Output& output = model_->signature().outputs[i];
      data[output.name] = output.type == recsys::OutputType::kInt64
                              ? DigitsOf(outputs.integers[i].data(), 8 * outputs.integers[i].size())
                              : DigitsOf(outputs.values[i].data(), 4 * outputs.values[i].size());
    }
    return data;
  }

  std::optional<recsys::Model> model_;
  std::shared_ptr<const recsys::PreparedDelta> prepared_;
};

const char* NameOf(recsys::ErrorKind kind) {
  static const std::map<recsys::ErrorKind, const char*> names{
      {recsys::ErrorKind::kArtifactNotFound, "ArtifactNotFoundError"},
      {recsys::ErrorKind::kForeignFile, "ForeignFileError"},
      {recsys::ErrorKind::kManifest, "ManifestError"},
      {recsys::ErrorKind::kNewerFormat, "NewerVersionError"},
      {recsys::ErrorKind::kMissingPart, "MissingPartError"},
      {recsys::ErrorKind::kPartSize, "PartSizeError"},
      {recsys::ErrorKind::kChecksum, "ChecksumError"},
      {recsys::ErrorKind::kTarget, "TargetError"},
      {recsys::ErrorKind::kRowsMemory, "RowsMemoryError"},
      {recsys::ErrorKind::kDelta, "DeltaError"},
      {recsys::ErrorKind::kLibrary, "ArtifactError"},
      {recsys::ErrorKind::kRequest, "RequestError"},
      {recsys::ErrorKind::kRequestTooLarge, "RequestTooLargeError"},
      {recsys::ErrorKind::kExecution, "RuntimeError"},
      {recsys::ErrorKind::kConfig, "ValueError"},
  };
  const auto found = names.find(kind);
  return found == names.end() ? "another" : found->second;
}

}  // namespace

int main() {
  recsys::SetIntraOpThreads(1);
  Tool tool;
  for (std::string line; std::getline(std::cin, line);) {
    Json answer;
    try {
      answer = {{"ok", tool.Run(recsys::ParseJson(line))}};
    } catch (const recsys::Error& error) {
      answer = {{"error", NameOf(error.kind())}, {"text", error.what()}};
    }
    std::cout << answer.dump(-1, ' ', true, Json::error_handler_t::replace) << std::endl;
  }
}
