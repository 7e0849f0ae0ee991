#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "format/wide.h"
#include "recsys/error.h"
#include "recsys/request.h"
#include "request/dense_check.h"
#include "request/picks.h"
#include "request/sparse_check.h"
#include "request/table_names.h"

namespace recsys {
namespace {

constexpr Wide kIdBytes = 8;
constexpr Wide kFloatBytes = 4;
// More rows than any request has, and few enough that no size overflows, whatever the widths in the
// signature.
constexpr std::int64_t kMostRows = std::int64_t{1} << 48;

template <typename Input>
std::vector<std::uint32_t> ByName(const std::vector<Input>& inputs) {
  std::vector<std::uint32_t> order(inputs.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return inputs[a].name < inputs[b].name; });
  return order;
}

IdBound IdBoundOf(const SparseInput& input, const std::map<std::string, std::string>& names) {
  const std::optional<std::int64_t> limit = input.id_limit();
  if (!limit) return {std::numeric_limits<std::uint64_t>::max()};
  IdBound bound{static_cast<std::uint64_t>(*limit - 1)};
  for (const TableUse& table : input.tables) {
    if (table.num_embeddings != *limit) continue;
    bound.tables += (bound.tables.empty() ? "" : ", ") + names.at(table.name);
  }
  return bound;
}

}  // namespace

/// Checks one request.
class RequestCheck {
 public:
  RequestCheck(const RequestChecker& checker, const RawRequest& request, CheckedRequest* checked)
      : checker_(checker),
        signature_(checker.signature_),
        request_(request),
        checked_(checked),
        dense_(signature_.dense.size()),
        sparse_(signature_.sparse.size()) {}

  void Run() {
    const std::int64_t num_rows = request_.num_rows;
    if (num_rows < 0) {
      throw Error(ErrorKind::kRequest,
                  "num_rows: got " + std::to_string(num_rows) + ", expected 0 or more");
    }
    CheckSizes(checker_.limits_, num_rows, 0, 0);
    if (num_rows == 0 && signature_.without_rows() != nullptr) {
      throw Error(ErrorKind::kRequest, "num_rows: got 0, expected 1 or more: output " +
                                           Short(signature_.without_rows()->name) +
                                           " has no batch dimension");
    }
    Picker<DenseInput, RawDense>("dense", signature_.dense, checker_.dense_by_name_)
        .Pick(request_.dense, request_.context_dense, &dense_);
    Picker<SparseInput, RawSparse>("sparse", signature_.sparse, checker_.sparse_by_name_)
        .Pick(request_.sparse, request_.context_sparse, &sparse_);
    checked_->num_rows = num_rows;
    checked_->has_context = HasContext();
    checked_->ids_of_texts.clear();
    CheckDense();
    CheckSparse();
    Count();
  }

 private:
  /// Whether the request gives the model's whole context once; then the ranking graph computes it.
  bool HasContext() {
    if (!checker_.has_context_) return false;
    if (request_.context_dense.empty() && request_.context_sparse.empty()) return false;
    for (std::size_t i = 0; i < dense_.size(); ++i) {
      if (checker_.dense_in_context_[i] && !dense_[i].once) return false;
    }
    for (std::size_t i = 0; i < sparse_.size(); ++i) {
      if (checker_.sparse_in_context_[i] && !sparse_[i].once) return false;
    }
    return true;
  }

  void CheckDense() {
    checked_->dense.resize(dense_.size());
    for (std::size_t i = 0; i < dense_.size(); ++i) {
      const bool once = dense_[i].once;
      const DenseCheck check{signature_.dense[i], once ? 1 : request_.num_rows, once};
      check.Run(dense_[i].raw->values, checker_.allow_non_finite_);
      const bool in_graph = checked_->has_context && checker_.dense_in_context_[i];
      checked_->dense[i] = {dense_[i].raw->values.data(), once && !in_graph};
    }
  }

  void CheckSparse() {
    PlaceSparse();
    SparseCheck check(signature_, checker_.id_bounds_, checker_.limits_,
                      !checker_.allow_non_finite_);
    const auto run = [&](bool once) {
      check.Start(once ? "context_sparse" : "sparse", once ? 1 : request_.num_rows);
      ForEachSparse([&](std::size_t i, SparseView* view) {
        if (sparse_[i].once == once) check.Size(i, *sparse_[i].raw, view);
      });
      check.Total();
      ForEachSparse([&](std::size_t i, SparseView* view) {
        if (sparse_[i].once == once) check.Lengths(i, *view);
      });
      check.EndOfLengths();
      ForEachSparse([&](std::size_t i, SparseView* view) {
        if (sparse_[i].once == once) check.FixedLengths(i, *view);
      });
      if (checker_.has_same_lengths_) CheckSameLengthsOf(once);
      if (check.num_texts() > 0) {
        const auto num_texts = static_cast<std::size_t>(check.num_texts());
        const std::shared_ptr<std::int64_t[]> ids(new std::int64_t[num_texts]);
        checked_->ids_of_texts.push_back(ids);
        std::int64_t* next = ids.get();
        ForEachSparse([&](std::size_t i, SparseView* view) {
          if (sparse_[i].once == once) next = check.Texts(i, *sparse_[i].raw, next, view);
        });
      }
      ForEachSparse([&](std::size_t i, SparseView* view) {
        if (sparse_[i].once == once) check.Ids(i, *view);
      });
      if (!checker_.is_weighted_) return;
      ForEachSparse([&](std::size_t i, SparseView* view) {
        if (sparse_[i].once == once) check.Weights(i, *view);
      });
    };
    if (!request_.context_sparse.empty()) run(true);
    run(false);
    if (checker_.has_same_lengths_) CheckSameLengthsOfBoth();
  }

  /// Checks inputs that have the lengths of others, where one of the two is given once for all
  /// rows.
  void CheckSameLengthsOfBoth() {
    std::vector<const SparseView*> views(sparse_.size());
    ForEachSparse([&](std::size_t i, SparseView* view) { views[i] = view; });
    for (std::size_t i = 0; i < sparse_.size(); ++i) {
      const std::optional<std::size_t> other = checker_.same_lengths_as_[i];
      if (!other || sparse_[i].once == sparse_[*other].once) continue;
      CheckSameLengths(signature_, {sparse_[i].once ? "context_sparse" : "sparse", i, *other},
                       {views[i]->lengths, sparse_[i].once},
                       {views[*other]->lengths, sparse_[*other].once}, request_.num_rows);
    }
  }

  /// Checks inputs that have the lengths of others, where both are given once, or neither.
  void CheckSameLengthsOf(bool once) {
    std::vector<const SparseView*> views(sparse_.size());
    ForEachSparse([&](std::size_t i, SparseView* view) { views[i] = view; });
    for (std::size_t i = 0; i < sparse_.size(); ++i) {
      const std::optional<std::size_t> other = checker_.same_lengths_as_[i];
      if (!other || sparse_[i].once != once || sparse_[*other].once != once) continue;
      CheckSameLengths(signature_, {once ? "context_sparse" : "sparse", i, *other},
                       {views[i]->lengths, false}, {views[*other]->lengths, false},
                       once ? 1 : request_.num_rows);
    }
  }

  /// Makes room for the sparse inputs; context inputs are kept separate if the ranking graph takes
  /// them.
  void PlaceSparse() {
    std::size_t num_context = 0;
    if (checked_->has_context) {
      const std::vector<bool>& in_context = checker_.sparse_in_context_;
      num_context =
          static_cast<std::size_t>(std::count(in_context.begin(), in_context.end(), true));
    }
    checked_->context.resize(num_context);
    checked_->sparse.resize(sparse_.size() - num_context);
  }

  /// Calls `call` with each sparse input's position in the signature and its view.
  template <typename Call>
  void ForEachSparse(Call call) {
    SparseView* context = checked_->context.data();
    SparseView* rows = checked_->sparse.data();
    for (std::size_t i = 0; i < sparse_.size(); ++i) {
      const bool apart = checked_->has_context && checker_.sparse_in_context_[i];
      call(i, apart ? context++ : rows++);
    }
  }

  /// Counts IDs and bytes. Inputs given once but computed per row are repeated; the total is
  /// bounded too.
  void Count() {
    Wide num_ids = 0, spread_bytes = 0;
    const Wide num_rows = request_.num_rows;
    ForEachSparse([&](std::size_t i, SparseView* view) {
      const bool apart = checked_->has_context && checker_.sparse_in_context_[i];
      view->repeat = sparse_[i].once && !apart;
      const Wide num = view->repeat ? view->num_ids * num_rows : view->num_ids;
      num_ids += num;
      if (view->repeat) spread_bytes += num * kIdBytes;
    });
    for (std::size_t i = 0; i < dense_.size(); ++i) {
      if (checked_->dense[i].repeat)
        spread_bytes += signature_.dense[i].width * kFloatBytes * num_rows;
    }
    CheckSizes(checker_.limits_, request_.num_rows, num_ids, spread_bytes);
    checked_->num_ids = static_cast<std::int64_t>(num_ids);
    checked_->spread_bytes = static_cast<std::int64_t>(spread_bytes);
  }

  const RequestChecker& checker_;
  const Signature& signature_;
  const RawRequest& request_;
  CheckedRequest* checked_;
  Picks<RawDense> dense_;
  Picks<RawSparse> sparse_;
};

RequestChecker::RequestChecker(Signature signature, RequestLimits limits, bool allow_non_finite)
    : signature_(std::move(signature)),
      limits_(limits),
      allow_non_finite_(allow_non_finite),
      has_context_(!signature_.context.empty()),
      is_weighted_(signature_.is_weighted()),
      dense_by_name_(ByName(signature_.dense)),
      sparse_by_name_(ByName(signature_.sparse)) {
  limits_.max_rows = std::min(limits_.max_rows, kMostRows);
  const std::map<std::string, std::string> table_names = ShortTableNames(signature_);
  for (const DenseInput& input : signature_.dense) {
    dense_in_context_.push_back(signature_.InContext(input.name));
  }
  for (const SparseInput& input : signature_.sparse) {
    sparse_in_context_.push_back(signature_.InContext(input.name));
    same_lengths_as_.push_back(signature_.SameLengthsAs(input));
    has_same_lengths_ = has_same_lengths_ || same_lengths_as_.back().has_value();
    id_bounds_.push_back(IdBoundOf(input, table_names));
  }
}

std::optional<std::int64_t> RequestChecker::FirstId(const CheckedRequest& checked,
                                                    std::string_view name) const {
  const SparseView* context = checked.context.data();
  const SparseView* rows = checked.sparse.data();
  for (std::size_t i = 0; i < signature_.sparse.size(); ++i) {
    const SparseView& view = checked.has_context && sparse_in_context_[i] ? *context++ : *rows++;
    if (signature_.sparse[i].name != name) continue;
    if (view.num_ids == 0) return std::nullopt;
    std::int64_t id = 0;
    std::memcpy(&id, view.values, sizeof(id));
    return id;
  }
  return std::nullopt;
}

void RequestChecker::Check(const RawRequest& request, CheckedRequest* checked) const {
  RequestCheck(*this, request, checked).Run();
}

}  // namespace recsys
