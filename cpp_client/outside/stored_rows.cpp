#include "outside/stored_rows.h"

#include <sys/time.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "recsys/error.h"

namespace recsys {
namespace {

/// How long a node may take while a model is opened or a delta prepared.
constexpr double kPatienceS = 5;

NodeAddress AddressOf(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  std::int64_t port = 0;
  const bool has_port = colon != std::string::npos && colon > 0 && colon + 1 < text.size() &&
                        text.size() - colon <= 6 &&
                        text.find_first_not_of("0123456789", colon + 1) == std::string::npos;
  if (has_port) port = std::stoll(text.substr(colon + 1));
  if (port < 1 || port > 65535) {
    throw Error(ErrorKind::kConfig, "rows: got " + Short(text) + ", expected HOST:PORT");
  }
  return {text.substr(0, colon), port};
}

std::vector<HotRows::Block> HotBlocks(const std::vector<StoredBlock>& blocks) {
  std::vector<HotRows::Block> hot;
  for (const StoredBlock& block : blocks) hot.push_back({block.num_rows, block.row_bytes});
  return hot;
}

/// A connection that blocks, for what is asked seldom.
class Question {
 public:
  explicit Question(const NodeAddress& address) {
    const timeval patience{static_cast<time_t>(kPatienceS), 0};
    context_.reset(
        redisConnectWithTimeout(address.host.c_str(), static_cast<int>(address.port), patience));
    if (context_ == nullptr || context_->err != 0 ||
        redisSetTimeout(context_.get(), patience) != REDIS_OK) {
      context_.reset();
    }
  }

  /// Returns a field of a hash; empty if it has none. Sets `*has_answered`.
  std::string Field(const std::string& key, const std::string& field, bool* has_answered) {
    *has_answered = false;
    if (context_ == nullptr) return {};
    const Line::Reply reply(static_cast<redisReply*>(redisCommand(
        context_.get(), "HGET %b %b", key.data(), key.size(), field.data(), field.size())));
    *has_answered = reply != nullptr && reply->type != REDIS_REPLY_ERROR;
    const redisReply* const text = AsText(reply);
    return text == nullptr ? std::string() : std::string(text->str, text->len);
  }

 private:
  struct FreeContext {
    void operator()(redisContext* context) const { redisFree(context); }
  };
  std::unique_ptr<redisContext, FreeContext> context_;
};

}  // namespace

StoredRows::StoredRows(const OutsideRowsOptions& options, const Artifact& artifact,
                       std::vector<StoredBlock> blocks, std::function<void()> on_zeros)
    : blocks_(std::move(blocks)),
      on_zeros_(std::move(on_zeros)),
      prefix_(KeyPrefix(artifact.name, artifact.digest)),
      hot_(options.cache_bytes, HotBlocks(blocks_)),
      state_{artifact.digest, 0} {
  if (!options.replicas.empty() && options.replicas.size() != options.nodes.size()) {
    throw Error(ErrorKind::kConfig,
                "rows_replicas: got " + std::to_string(options.replicas.size()) + ", expected " +
                    std::to_string(options.nodes.size()) + ": one for each node of rows, or none");
  }
  const std::string of = " of " + std::to_string(options.nodes.size());
  for (std::size_t i = 0; i < options.nodes.size(); ++i) {
    nodes_.emplace_back(AddressOf(options.nodes[i]), "node " + std::to_string(i + 1) + of);
  }
  for (std::size_t i = 0; i < options.replicas.size(); ++i) {
    nodes_.emplace_back(AddressOf(options.replicas[i]),
                        "the replica of node " + std::to_string(i + 1) + of);
  }
  for (const StoredBlock& block : blocks_) block_prefixes_.push_back(BlockPrefix(prefix_, block));
  plan_.blocks = &blocks_;
  plan_.block_prefixes = &block_prefixes_;
  plan_.meta_key = MetaKey(prefix_);
  plan_.nodes = &nodes_;
  plan_.num_nodes = options.nodes.size();
  plan_.deadline_s = static_cast<double>(options.deadline_ms) / 1e3;
  plan_.hedge_s = static_cast<double>(options.hedge_ms) / 1e3;
  CheckNodes(artifact);
}

void StoredRows::CheckNodes(const Artifact& artifact) const {
  for (std::size_t i = 0; i < plan_.num_nodes; ++i) {
    Question question(nodes_[i].address());
    bool has_answered = false;
    const std::string got = question.Field(plan_.meta_key, "complete", &has_answered);
    if (!has_answered) {
      throw Error(ErrorKind::kRowsMemory, "rows: " + nodes_[i].name() + " cannot be reached");
    }
    const std::string expected = std::to_string(i) + "/" + std::to_string(plan_.num_nodes);
    if (got == expected) continue;
    throw Error(ErrorKind::kRowsMemory,
                "rows: " + nodes_[i].name() +
                    (got.empty() ? " does not hold" : " holds as part " + Short(got)) +
                    " the rows of model " + Repr(artifact.name) + ", digest " + artifact.digest +
                    ", expected part " + expected +
                    ": run recsys-export --push-rows with the same nodes in the same order");
  }
  for (const StoredBlock& block : blocks_) {
    Question question(nodes_[0].address());
    bool has_answered = false;
    const std::string field = "table:" + block.table;
    if (!question.Field(plan_.meta_key, field, &has_answered).empty()) continue;
    throw Error(ErrorKind::kRowsMemory,
                "rows: the nodes do not hold table " + Repr(block.table) +
                    ": run recsys-export --push-rows with the same --rows-over, or a lower one");
  }
}

ops::OutsideRows::Place StoredRows::Find(std::int64_t offset) const {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const StoredBlock& block = blocks_[i];
    if (offset < block.offset_bytes || offset >= block.end_bytes()) continue;
    return {static_cast<std::int64_t>(i), (offset - block.offset_bytes) / block.row_bytes};
  }
  return {};
}

void StoredRows::Read(const std::vector<Wanted>& rows) {
  std::vector<Wanted> missing;
  for (const Wanted& wanted : rows) {
    if (!hot_.Copy(wanted.block, wanted.row, wanted.to)) missing.push_back(wanted);
  }
  {
    const std::lock_guard<std::mutex> lock(counts_mutex_);
    counts_.hits += static_cast<std::int64_t>(rows.size() - missing.size());
    counts_.misses += static_cast<std::int64_t>(missing.size());
  }
  if (!missing.empty()) ReadMissing(missing);
}

std::unique_ptr<Lines> StoredRows::TakeLines() {
  {
    const std::lock_guard<std::mutex> lock(lines_mutex_);
    if (!lines_.empty()) {
      std::unique_ptr<Lines> found = std::move(lines_.back());
      lines_.pop_back();
      return found;
    }
  }
  auto made = std::make_unique<Lines>();
  for (const Node& node : nodes_) made->emplace_back(node.address());
  return made;
}

void StoredRows::ReadMissing(const std::vector<Wanted>& rows) {
  const double start_s = MonotonicSeconds();
  // What throws on the way leaves its lines behind: they may have open answers.
  std::unique_ptr<Lines> lines = TakeLines();
  Reading reading(plan_, state_, lines.get());
  reading.Run(rows);
  {
    const std::lock_guard<std::mutex> lock(lines_mutex_);
    lines_.push_back(std::move(lines));
  }
  const double seconds = MonotonicSeconds() - start_s;
  {
    const std::lock_guard<std::mutex> lock(counts_mutex_);
    const auto& bounds = OutsideRowsCounts::kSeconds;
    const auto bucket = std::lower_bound(bounds.begin(), bounds.end(), seconds) - bounds.begin();
    ++counts_.seconds[static_cast<std::size_t>(bucket)];
    counts_.seconds_sum += seconds;
    counts_.read_bytes += reading.num_bytes();
    counts_.hedged += reading.num_hedged();
    counts_.failures += static_cast<std::int64_t>(reading.failures().size());
  }
  std::vector<bool> was_read(rows.size(), true);
  for (const Reading::Failure& failure : reading.failures()) {
    for (const std::size_t at : failure.rows) was_read[at] = false;
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (was_read[i]) hot_.Offer(rows[i].block, rows[i].row, rows[i].to);
  }
  if (!reading.failures().empty()) Miss(rows, reading.failures());
}

void StoredRows::Miss(const std::vector<Wanted>& rows,
                      const std::vector<Reading::Failure>& failures) {
  std::int64_t num_zeros = 0;
  for (const Reading::Failure& failure : failures) {
    for (const std::size_t at : failure.rows) {
      const StoredBlock& block = blocks_[static_cast<std::size_t>(rows[at].block)];
      if (!block.is_zero) {
        throw Error(ErrorKind::kNotReady, "rows of table " + Repr(block.table) + ": " +
                                              nodes_[failure.node].name() + " " + failure.why +
                                              "; send the request again");
      }
      std::memset(rows[at].to, 0, static_cast<std::size_t>(block.row_bytes));
      ++num_zeros;
    }
  }
  on_zeros_();
  const std::lock_guard<std::mutex> lock(counts_mutex_);
  counts_.zeros += num_zeros;
}

std::int64_t StoredRows::NumberOf(const std::string& delta_digest) const {
  std::string number;
  for (std::size_t i = 0; i < plan_.num_nodes; ++i) {
    Question question(nodes_[i].address());
    bool has_answered = false;
    number = question.Field(plan_.meta_key, StateField(delta_digest), &has_answered);
    if (!has_answered) {
      throw Error(ErrorKind::kDelta, "delta: rows: " + nodes_[i].name() + " cannot be reached");
    }
    const bool is_number = !number.empty() && number.size() <= 9 &&
                           number.find_first_not_of("0123456789") == std::string::npos;
    if (is_number) continue;
    throw Error(ErrorKind::kDelta, "delta: " + nodes_[i].name() +
                                       " of the rows does not hold it: run recsys-export "
                                       "--push-rows with the delta first");
  }
  return std::stoll(number);
}

OutsideRowsCounts StoredRows::counts() const {
  const std::lock_guard<std::mutex> lock(counts_mutex_);
  OutsideRowsCounts counts = counts_;
  counts.cache_bytes = hot_.num_bytes();
  return counts;
}

}  // namespace recsys
