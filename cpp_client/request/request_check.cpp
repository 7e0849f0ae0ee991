#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/text.h"
#include "format/wide.h"
#include "recsys/error.h"
#include "recsys/request.h"
#include "recsys/span.h"
#include "request/input_checks.h"

namespace recsys {
namespace {

std::string ListedViews(const std::vector<std::string_view>& names) {
  return Listed({names.begin(), names.end()});
}

/// Throws Error (kRequest): `got`, which holds at most one name more than expected, does not
/// contain exactly the expected names, each once.
[[noreturn]] void ThrowWrongNames(const char* kind, const std::vector<std::string_view>& got,
                                  const std::vector<std::string_view>& expected) {
  const std::string at(kind);
  const std::unordered_set<std::string_view> known(expected.begin(), expected.end());
  std::unordered_map<std::string_view, int> times;
  for (const std::string_view name : got) {
    if (known.count(name) == 0) {
      throw Error(ErrorKind::kRequest, at + ": got an unknown input " + Short(name) +
                                           ", expected " + ListedViews(expected));
    }
    ++times[name];
  }
  for (const std::string_view name : got) {
    if (times[name] > 1) {
      throw Error(ErrorKind::kRequest,
                  at + ": got " + Repr(name) + " more than once, expected each input once");
    }
  }
  std::vector<std::string_view> missing;
  for (const std::string_view name : expected) {
    if (times.count(name) == 0) missing.push_back(name);
  }
  throw Error(ErrorKind::kRequest, at + ": missing " + ListedViews(missing) +
                                       ", expected each of the model's inputs once");
}

/// A name of a table, and where the part begins that is shown.
struct Shortened {
  std::size_t start;

  /// Shows one more part, if there is one.
  bool Extend(const std::string& name) {
    if (start == 0) return false;
    const std::size_t point = start < 2 ? std::string::npos : name.rfind('.', start - 2);
    start = point == std::string::npos ? 0 : point + 1;
    return true;
  }
};

/// Returns the names of all tables as people read them, by name: the last parts between points, as
/// many as tell a name from all others (recsys/base/table_names.py).
std::map<std::string, std::string> ShortTableNames(const Signature& signature) {
  std::map<std::string, Shortened> shown;
  for (const SparseInput& input : signature.sparse) {
    for (const TableUse& table : input.tables) {
      const std::size_t point = table.name.rfind('.');
      shown[table.name] = {point == std::string::npos ? 0 : point + 1};
    }
  }
  while (true) {
    std::map<std::string, std::string> names;
    std::map<std::string, std::size_t> counts;
    for (const auto& [name, cut] : shown) ++counts[names[name] = name.substr(cut.start)];
    bool has_longer = false;
    for (auto& [name, cut] : shown) {
      const std::string& text = names[name];
      if (counts[text] > 1 || text.empty()) has_longer = cut.Extend(name) || has_longer;
    }
    if (!has_longer) return names;
  }
}

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

/// A request's input, at its position in the signature.
template <typename Raw>
struct Pick {
  const Raw* raw = nullptr;
  /// Whether it was given once for all rows.
  bool once = false;
};

/// A request's inputs of one kind in the signature's order; does not allocate for the usual number
/// of inputs.
template <typename Raw>
class Picks {
 public:
  explicit Picks(std::size_t size) : size_(size) {
    if (size > few_.size()) many_.resize(size);
  }
  Picks(const Picks&) = delete;
  Picks& operator=(const Picks&) = delete;

  Pick<Raw>& operator[](std::size_t at) { return many_.empty() ? few_[at] : many_[at]; }
  std::size_t size() const { return size_; }

 private:
  std::size_t size_;
  std::array<Pick<Raw>, 64> few_;
  std::vector<Pick<Raw>> many_;
};

/// Finds each input of the signature in a request.
template <typename Input, typename Raw>
class Picker {
 public:
  /// `by_name`: positions in `inputs`, ordered by name.
  Picker(const char* kind, const std::vector<Input>& inputs,
         const std::vector<std::uint32_t>& by_name)
      : kind_(kind), inputs_(inputs), by_name_(by_name) {}

  /// Requires every input exactly once, among those given for each row and those given once;
  /// otherwise throws Error (kRequest).
  void Pick(Span<const Raw> rows, Span<const Raw> once, Picks<Raw>* picks) const {
    if (once.empty() && IsInOrder(rows)) {
      for (std::size_t i = 0; i < inputs_.size(); ++i) (*picks)[i] = {&rows[i], false};
      return;
    }
    // Looks at one more than expected at most: enough to report what is wrong, without going
    // through millions.
    const std::size_t most = inputs_.size() + 1;
    const std::size_t num_rows = std::min(rows.size(), most);
    const std::size_t num_once = std::min(once.size(), most);
    bool fits = num_rows + num_once == inputs_.size();
    for (std::size_t i = 0; fits && i < num_rows; ++i) fits = Place(rows[i], false, picks);
    for (std::size_t i = 0; fits && i < num_once; ++i) fits = Place(once[i], true, picks);
    if (!fits) Refuse(rows, once, most);
  }

 private:
  bool IsInOrder(Span<const Raw> got) const {
    if (got.size() != inputs_.size()) return false;
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (got[i].name != inputs_[i].name) return false;
    }
    return true;
  }

  bool Place(const Raw& raw, bool once, Picks<Raw>* picks) const {
    const auto found = std::lower_bound(
        by_name_.begin(), by_name_.end(), raw.name,
        [this](std::uint32_t at, std::string_view name) { return inputs_[at].name < name; });
    if (found == by_name_.end() || inputs_[*found].name != raw.name) return false;
    recsys::Pick<Raw>& pick = (*picks)[*found];
    if (pick.raw != nullptr) return false;
    pick = {&raw, once};
    return true;
  }

  [[noreturn]] void Refuse(Span<const Raw> rows, Span<const Raw> once, std::size_t most) const {
    std::vector<std::string_view> got, expected;
    for (const Span<const Raw>& part : {rows, once}) {
      for (std::size_t i = 0; i < std::min(part.size(), most) && got.size() < most; ++i) {
        got.push_back(part[i].name);
      }
    }
    for (const Input& input : inputs_) expected.push_back(input.name);
    ThrowWrongNames(kind_, got, expected);
  }

  const char* kind_;
  const std::vector<Input>& inputs_;
  const std::vector<std::uint32_t>& by_name_;
};

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
      ForEachSparse([&](std::size_t i, SparseView* view) {
        if (sparse_[i].once == once) check.MostIds(i, *view);
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
