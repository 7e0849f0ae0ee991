#ifndef RECSYS_CLIENT_H_
#define RECSYS_CLIENT_H_

// A client of recsys-serve and recsys-server. This header needs neither protobuf nor gRPC, so
// programs may include it together with torch. Shape letters: B rows of a request, F sparse inputs,
// N number of IDs of one input.

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "recsys/error.h"
#include "recsys/request.h"
#include "recsys/signature.h"
#include "recsys/span.h"
#include "recsys/status_code.h"

namespace recsys {

/// A failed call. The error's kind is for programs that catch Error: kRequest, kModelNotFound,
/// kQueueFull, kDeadlineExpired, kNotReady (no server is listening, or it is stopping),
/// kNotAllowed, or kExecution.
class ClientError : public Error {
 public:
  ClientError(StatusCode code, const std::string& message,
              std::optional<std::int64_t> retry_after_ms = std::nullopt, int num_attempts = 1);

  StatusCode code() const { return code_; }
  /// The server's own text (field, got, expected), or the transport's if no server answered.
  const std::string& message() const { return message_; }
  /// How long the server asks to wait before retrying; not set if it names no time.
  std::optional<std::int64_t> retry_after_ms() const { return retry_after_ms_; }
  /// Number of times the request was sent.
  int num_attempts() const { return num_attempts_; }

 private:
  StatusCode code_;
  std::string message_;
  std::optional<std::int64_t> retry_after_ms_;
  int num_attempts_;
};

/// The order in which waiting requests run; kUnspecified means kNormal.
enum class Priority { kUnspecified = 0, kHigh = 1, kNormal = 2, kLow = 3 };

/// PEM files; empty means none.
struct ClientTls {
  /// The CA certificates that verify the server; empty uses the system's own list.
  std::string ca;
  /// The client's certificate and key, if the server requires one (mTLS): both or neither.
  std::string certificate;
  std::string key;
  /// The name expected in the server's certificate, if it differs from that of the address.
  std::string server_name;
};

/// Which calls are retried: those that end with UNAVAILABLE, and those that end with
/// RESOURCE_EXHAUSTED if the server names a time to wait (its queue was full; without a time the
/// message was too large). Never beyond the call's deadline, and never more than the budget allows,
/// so that retries do not multiply the load of a failing server.
struct ClientRetries {
  /// Attempts per call, including the first; 1 disables retries.
  int max_attempts = 3;
  /// Wait before the second attempt; doubled before each further one, up to max_backoff_s. The
  /// actual wait is random, between half of that and all of it. A time named by the server
  /// (grpc-retry-pushback-ms) takes precedence.
  double first_backoff_s = 0.02;
  double max_backoff_s = 1.0;
  /// All retries of the client together are at most this share of its calls...
  double budget_share = 0.1;
  /// ...plus this many.
  double budget_burst = 10;
};

/// Settings of all calls of a client.
struct ClientOptions {
  /// Per call, including its retries, unless the call sets its own.
  double timeout_s = 10.0;
  /// The model's name; empty for the server's only model.
  std::string model;
  /// The version; empty for the one that the server's routing chooses.
  std::string version;
  Priority priority = Priority::kUnspecified;
  /// Not set for plain text.
  std::optional<ClientTls> tls;
  ClientRetries retries;
  /// Number of connections; calls use them in turn.
  int num_connections = 1;
  /// Threads that wait for answers and run callbacks.
  int num_threads = 1;
  /// Maximum bytes of requests that a stream buffers while the server is not reading.
  std::int64_t max_stream_bytes = 64 << 20;
};

/// Cancels every call that was given it. Thread-safe.
class Cancellation {
 public:
  Cancellation();
  ~Cancellation();
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  /// Ends the calls with CANCELLED, soon, and every call started later.
  void Cancel();

  struct Listeners;

 private:
  friend class CancellationLink;
  std::shared_ptr<Listeners> listeners_;
};

/// Settings of one call.
struct CallOptions {
  /// Overrides the client's timeout.
  std::optional<double> timeout_s;
  std::shared_ptr<Cancellation> cancellation;
};

/// One request: named inputs, packed as they are added (the caller's memory is not needed
/// afterwards). Not thread-safe while it is built; a finished request may be sent any number of
/// times, by several threads at once.
class ClientRequest {
 public:
  /// `num_rows` is B: every input outside the context must have as many rows; 0 is an empty batch.
  explicit ClientRequest(std::int64_t num_rows);

  /// Adds a float32 input, row-major [B, width].
  ClientRequest& AddDense(const std::string& name, Span<const float> values);
  /// Adds bags of IDs: lengths [B], values [N], and weights [N] for weighted inputs.
  ClientRequest& AddSparse(const std::string& name, Span<const std::int32_t> lengths,
                           Span<const std::int64_t> values, Span<const float> weights = {});
  /// Adds bags of IDs, given row by row.
  ClientRequest& AddSparse(const std::string& name,
                           const std::vector<std::vector<std::int64_t>>& rows,
                           const std::vector<std::vector<float>>& weights = {});

  /// Adds bags of texts in place of IDs: the server turns them into IDs (docs/serve/wire.md).
  ClientRequest& AddTexts(const std::string& name, Span<const std::int32_t> lengths,
                          Span<const std::string_view> texts, Span<const float> weights = {});
  /// Adds bags of texts, given row by row.
  ClientRequest& AddTexts(const std::string& name,
                          const std::vector<std::vector<std::string>>& rows,
                          const std::vector<std::vector<float>>& weights = {});

  /// Ranking: adds an input that all B rows (the candidates) share, such as the user's. It has one
  /// row, which applies to all.
  ClientRequest& AddContextDense(const std::string& name, Span<const float> values);
  ClientRequest& AddContextSparse(const std::string& name, Span<const std::int64_t> values,
                                  Span<const float> weights = {});
  ClientRequest& AddContextTexts(const std::string& name, Span<const std::string_view> texts,
                                 Span<const float> weights = {});

  /// Sets the ID that the server logs if the request fails, and that identifies answers on streams.
  /// At most 128 bytes.
  ClientRequest& SetRequestId(std::string request_id);
  /// Overrides the client's priority.
  ClientRequest& SetPriority(Priority priority);

  std::int64_t num_rows() const { return num_rows_; }
  const std::string& request_id() const { return request_id_; }
  const std::optional<Priority>& priority() const { return priority_; }
  /// The inputs in wire format.
  const std::string& packed() const { return packed_; }

 private:
  std::int64_t num_rows_;
  std::string request_id_;
  std::optional<Priority> priority_;
  std::string packed_;
};

/// One output of an answer: row-major [dims...]; for most models dims[0] is B.
struct ClientOutput {
  std::string name;
  std::vector<std::int64_t> dims;
  /// The numbers of a float32 output.
  std::vector<float> values;
  /// The numbers of an int64 output, such as the IDs of items.
  std::vector<std::int64_t> integers = {};
  OutputType type = OutputType::kFloat32;
};

/// The answer to a request.
struct ClientResponse {
  std::vector<ClientOutput> outputs;
  /// The model and version that answered.
  std::string model;
  std::string version;
  /// Number of times the request was sent.
  int num_attempts = 1;

  /// Returns the output with that name; throws Error (kRequest) if the model has none. On a
  /// temporary response it returns a copy, so that no reference outlives the response.
  const ClientOutput& output(const std::string& name) const&;
  ClientOutput output(const std::string& name) &&;
};

/// A response, or the error that the call failed with.
class ClientResult {
 public:
  ClientResult(ClientResponse response) : result_(std::move(response)) {}  // NOLINT
  ClientResult(ClientError error) : result_(std::move(error)) {}           // NOLINT

  bool ok() const { return std::holds_alternative<ClientResponse>(result_); }
  /// Only if ok().
  const ClientResponse& response() const { return std::get<ClientResponse>(result_); }
  /// Only if not ok().
  const ClientError& error() const { return std::get<ClientError>(result_); }
  /// Moves the response out; throws the error if there is one.
  ClientResponse Take();

 private:
  std::variant<ClientResponse, ClientError> result_;
};

/// A model's inputs and outputs, as reported by its server.
struct ModelMetadata {
  std::string model;
  std::string version;
  std::string target;
  Signature signature;
  /// Per sparse input, in the signature's order: exclusive upper bound of its IDs; not set if every
  /// ID is accepted.
  std::vector<std::optional<std::int64_t>> id_limits;
  RequestLimits limits;
  /// Digest of the artifact's manifest, and the library versions that the artifact was made with.
  std::string digest;
  std::string torch_version;
  std::string fbgemm_version;
  /// Deltas applied since the artifact was loaded.
  std::vector<std::string> deltas;
};

/// Many requests over one call. Thread-safe. Destroying it cancels unanswered requests.
class ClientStream {
 public:
  struct State;
  explicit ClientStream(std::shared_ptr<State> state);
  ~ClientStream();
  ClientStream(const ClientStream&) = delete;
  ClientStream& operator=(const ClientStream&) = delete;

  /// Queues a request and returns; its answer is passed to the stream's callback exactly once, in
  /// any order, identified by its request_id. Throws Error (kRequest) if the request has no ID or
  /// one that is still unanswered, or after Finish; throws ClientError if the stream has ended, or
  /// if it holds max_stream_bytes of unsent requests (kResourceExhausted: send it again after
  /// further answers).
  void Send(const ClientRequest& request);
  /// Closes the sending side and waits for all answers. Throws ClientError if the stream itself
  /// failed. Must not be called from a callback.
  void Finish();
  /// Ends unanswered requests with CANCELLED.
  void Cancel();

 private:
  std::shared_ptr<State> state_;
};

/// A client. Thread-safe; no call blocks another. Callbacks run on the client's own threads, must
/// not throw, and must not call blocking functions (Predict, Metadata, Finish). Destroying a client
/// cancels its calls and waits for their callbacks.
class Client {
 public:
  using Callback = std::function<void(ClientResult)>;
  using StreamCallback = std::function<void(const std::string& request_id, ClientResult)>;

  /// `address` is host:port of a server, or dns:///host:port. Connects on the first call that needs
  /// it. Throws Error (kConfig) if the address, an option or a file of `options.tls` cannot be
  /// used.
  explicit Client(const std::string& address, const ClientOptions& options = {});
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  ~Client();

  /// Scores the rows of a request and waits for the answer. Throws ClientError.
  ClientResponse Predict(const ClientRequest& request, const CallOptions& options = {});
  /// Like Predict, without waiting: the future holds the answer, or throws ClientError.
  std::future<ClientResponse> PredictFuture(const ClientRequest& request,
                                            const CallOptions& options = {});
  /// Like Predict, without waiting; `callback` is called exactly once.
  void PredictAsync(const ClientRequest& request, Callback callback,
                    const CallOptions& options = {});

  /// Opens a stream of requests over one call: retries and the client's timeout do not apply,
  /// `options.timeout_s` covers the whole stream.
  std::unique_ptr<ClientStream> Stream(StreamCallback callback, const CallOptions& options = {});

  /// Returns the model's inputs and outputs. Throws ClientError.
  ModelMetadata Metadata(const CallOptions& options = {});

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace recsys

#endif  // RECSYS_CLIENT_H_
