#ifndef RECSYS_ENGINE_ANSWERS_ANSWER_BLOCK_H_
#define RECSYS_ENGINE_ANSWERS_ANSWER_BLOCK_H_

// Answered requests of one version, column by column. Shape letters: Q requests, R rows of all of
// them, N IDs of one input in all rows.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/request.h"
#include "engine/core/servable.h"

namespace recsys {

/// Bytes that grow at their end: the numbers of one column, aligned as malloc aligns. Not
/// thread-safe.
class Column {
 public:
  /// Throws std::bad_alloc; then nothing has changed.
  void Append(const void* from, std::size_t num_bytes) {
    if (num_bytes == 0) return;
    std::memcpy(Grow(num_bytes), from, num_bytes);
  }

  void Append(std::string_view bytes) { Append(bytes.data(), bytes.size()); }

  template <typename Number>
  void Push(Number number) {
    std::memcpy(Grow(sizeof(number)), &number, sizeof(number));
  }

  /// Appends that many copies of a byte.
  void Fill(std::size_t num_bytes, char byte) {
    if (num_bytes > 0) std::memset(Grow(num_bytes), byte, num_bytes);
  }

  /// Appends uninitialised bytes and returns where they begin; valid until the column grows.
  char* Grow(std::size_t num_bytes) {
    if (num_bytes > capacity_ - size_) Reserve(size_ + num_bytes);
    char* const at = data_.get() + size_;
    size_ += num_bytes;
    return at;
  }

  /// Forgets the bytes and keeps the memory.
  void Clear() { size_ = 0; }

  const char* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };

  // Rare: apart from the rest, which is short enough to be inlined.
  [[gnu::noinline]] void Reserve(std::size_t at_least) {
    constexpr std::size_t kFirstBytes = 256;
    const std::size_t capacity = std::max({at_least, 2 * capacity_, kFirstBytes});
    // Large blocks are moved by the kernel, without a copy.
    void* const data = std::realloc(data_.get(), capacity);
    if (data == nullptr) throw std::bad_alloc();
    static_cast<void>(data_.release());
    data_.reset(static_cast<char*>(data));
    capacity_ = capacity;
  }

  std::unique_ptr<char, Free> data_;
  std::size_t size_ = 0, capacity_ = 0;
};

/// The requests themselves.
struct RequestColumns {
  /// float64 [Q]: seconds since 1970; Request::answered_draw.
  Column times, draws;
  /// int64 [Q].
  Column num_rows;
  /// int32 [Q + 1]: where each request ID begins and ends in `ids`.
  Column id_offsets, ids;
  /// uint8 [Q]: places in `protocol_names`.
  Column protocols;
  std::vector<const char*> protocol_names;
  /// Of each output of the signature, its numbers.
  std::vector<Column> outputs;
};

/// One dense input. A request that gives it once for all its rows has it in the first alone.
struct DenseColumns {
  /// Of the numbers of a row.
  std::size_t row_bytes = 0;
  /// uint8 [R]: whether a row has numbers; empty if all have.
  Column has;
  /// float32 [number of rows that have numbers, width].
  Column values;
};

/// One sparse input, as DenseColumns for requests that give it once.
struct SparseColumns {
  /// int64 [N], of texts the IDs that they stand for; int32 [R + 1], empty while each row has one.
  Column values, offsets;
  bool hashes_texts = false;
  /// uint8 [R]: whether a row has a list; empty if all have.
  Column has;
  /// float32 [N]; empty without weights.
  Column weights;
  /// Of an input that hashes texts, where some request has texts; otherwise empty. int32 [R + 1]:
  /// offsets of a row's texts, none for rows that were given IDs; uint8 [R]: whether a row was
  /// given texts.
  Column text_offsets, has_texts;
  /// int32 [number of texts + 1]: offsets in `texts`.
  Column text_ends, texts;
};

/// Collects requests. Not thread-safe.
class AnswerBlock {
 public:
  /// `has_inputs`: whether the inputs of requests are kept too.
  AnswerBlock(std::shared_ptr<const VersionShape> shape, bool has_inputs);

  /// Appends an answered request of this version, whose `outputs` are set. After an exception the
  /// columns may differ in length: the block must not be read any more.
  void Add(const Request& request, double time_s);

  /// Forgets the requests and keeps the memory for others.
  void Clear();

  bool Takes(const VersionShape* shape, bool has_inputs) const {
    return shape == shape_.get() && has_inputs == has_inputs_;
  }
  const VersionShape& shape() const { return *shape_; }
  bool has_inputs() const { return has_inputs_; }
  std::int64_t num_requests() const { return num_requests_; }
  std::int64_t num_bytes() const { return num_bytes_; }
  /// R.
  std::int64_t num_rows() const { return num_rows_; }
  const RequestColumns& requests() const { return requests_; }
  /// In the signature's order; empty without inputs.
  const std::vector<DenseColumns>& dense() const { return dense_; }
  const std::vector<SparseColumns>& sparse() const { return sparse_; }

 private:
  void AddOutputs(const Request& request);
  void AddDense(const Request& request);
  void AddSparse(const Request& request);
  void AddBags(const SparseView& view, bool once, std::int64_t num_rows, SparseColumns* columns);
  void AddTexts(const RawSparse* given, const SparseView& view, bool once, std::int64_t num_rows,
                SparseColumns* columns);

  const std::shared_ptr<const VersionShape> shape_;
  const bool has_inputs_;
  std::int64_t num_requests_ = 0, num_rows_ = 0, num_bytes_ = 0;
  RequestColumns requests_;
  std::vector<DenseColumns> dense_;
  std::vector<SparseColumns> sparse_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_ANSWERS_ANSWER_BLOCK_H_
