#ifndef RECSYS_REQUEST_PICKS_H_
#define RECSYS_REQUEST_PICKS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "recsys/span.h"

namespace recsys {

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

/// Throws Error (kRequest): `got`, which holds at most one name more than expected, does not
/// contain exactly the expected names, each once.
[[noreturn]] void ThrowWrongNames(const char* kind, const std::vector<std::string_view>& got,
                                  const std::vector<std::string_view>& expected);

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

}  // namespace recsys

#endif  // RECSYS_REQUEST_PICKS_H_
