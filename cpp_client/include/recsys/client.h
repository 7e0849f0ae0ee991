#ifndef RECSYS_CLIENT_H_
#define RECSYS_CLIENT_H_

// A client of recsys-serve and recsys-server. This header needs neither protobuf nor gRPC, so that
// programs may include it beside torch. Shape letters: B rows of a request, F sparse inputs, N
// number of IDs of one input.

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "recsys/error.h"
#include "recsys/request.h"
#include "recsys/signature.h"
#include "recsys/span.h"
#include "recsys/status_code.h"

namespace recsys {

/// A call failed. Its kind says how, for programs that catch Error: kRequest, kModelNotFound,
/// kQueueFull, kDeadlineExpired, kNotReady (nobody listens there, or the server is stopping),
/// kNotAllowed, or kExecution.
class ClientError : public Error {
 public:
  ClientError(StatusCode code, const std::string& message,
              std::optional<std::int64_t> retry_after_ms = std::nullopt, int num_attempts = 1);

  StatusCode code() const { return code_; }
  /// The server's own text (field, got, expected), or the transport's where no server answered.
  const std::string& message() const { return message_; }
  /// How long the server asks to wait before trying again; none where it says nothing.
  std::optional<std::int64_t> retry_after_ms() const { return retry_after_ms_; }
  /// How often the request was sent.
  int num_attempts() const { return num_attempts_; }

 private:
  StatusCode code_;
  std::string message_;
  std::optional<std::int64_t> retry_after_ms_;
  int num_attempts_;
};

/// Which of the waiting requests runs first; kUnspecified is kNormal.
enum class Priority { kUnspecified = 0, kHigh = 1, kNormal = 2, kLow = 3 };

/// Files in PEM; empty for none.
struct ClientTls {
  /// Who signs the server's certificate; empty for the system's own list.
  std::string ca;
  /// The client's certificate and its key, where the server wants one (mTLS): both or none.
  std::string certificate;
  std::string key;
  /// The name that the server's certificate must have, where it is not that of the address.
  std::string server_name;
};

/// What is tried again: calls that end with UNAVAILABLE, and with RESOURCE_EXHAUSTED where the
/// server names a time to wait (its queue was full; without one the message was too large). Never
/// beyond the call's deadline, and never more than the budget allows: a server in trouble is not
/// asked several times as much.
struct ClientRetries {
  /// Of one call, the first included; 1 tries nothing again.
  int max_attempts = 3;
  /// Before the second attempt; doubled before each further one, up to max_backoff_s. The actual
  /// wait is drawn between half of that and all of it. Where the server names a time
  /// (grpc-retry-pushback-ms), that counts instead.
  double first_backoff_s = 0.02;
  double max_backoff_s = 1.0;
  /// Retries of all calls of the client together are at most this share of its calls...
  double budget_share = 0.1;
  /// ...plus this many.
  double budget_burst = 10;
};

/// What holds for all calls of a client.
struct ClientOptions {
  /// Of each call, its retries included, unless the call names its own.
  double timeout_s = 10.0;
  /// The model's name; empty for the one that the server holds.
  std::string model;
  /// Its version; empty for the one that the server's routing chooses.
  std::string version;
  Priority priority = Priority::kUnspecified;
  /// None for plain text.
  std::optional<ClientTls> tls;
  ClientRetries retries;
  /// Connections; calls take them in turn.
  int num_connections = 1;
  /// That wait for answers and run callbacks.
  int num_threads = 1;
  /// Most bytes of requests that one stream holds because the server does not read them yet.
  std::int64_t max_stream_bytes = 64 << 20;
};

/// Cancels calls: any number of them that were given it. Thread-safe.
class Cancellation {
 public:
  Cancellation();
  ~Cancellation();
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  /// The calls end with CANCELLED, soon; so does each that is begun later.
  void Cancel();

  struct Listeners;

 private:
  friend class CancellationLink;
  std::shared_ptr<Listeners> listeners_;
};

/// What holds for one call.
struct CallOptions {
  /// Instead of the client's.
  std::optional<double> timeout_s;
  std::shared_ptr<Cancellation> cancellation;
};

/// One request: named inputs, packed as they are added (the caller's memory is not needed
/// afterwards). Not thread-safe; a finished one may be sent any number of times, by many threads at
/// once.
class ClientRequest {
 public:
  /// B: every input that is no context must have as many rows; 0 is an empty batch.
  explicit ClientRequest(std::int64_t num_rows);

  /// Float32, row-major [B, width].
  ClientRequest& AddDense(const std::string& name, Span<const float> values);
  /// Bags of IDs: lengths [B], values [N], and weights [N] for inputs that are weighted.
  ClientRequest& AddSparse(const std::string& name, Span<const std::int32_t> lengths,
                           Span<const std::int64_t> values, Span<const float> weights = {});
  /// The same, row by row.
  ClientRequest& AddSparse(const std::string& name,
                           const std::vector<std::vector<std::int64_t>>& rows,
                           const std::vector<std::vector<float>>& weights = {});

  /// Ranking: inputs that all B rows (the candidates) share, such as the user's. One row, which
  /// stands for all.
  ClientRequest& AddContextDense(const std::string& name, Span<const float> values);
  ClientRequest& AddContextSparse(const std::string& name, Span<const std::int64_t> values,
                                  Span<const float> weights = {});

  /// Stands in the server's log where the request fails; on streams it tells answers apart. At most
  /// 128 bytes.
  ClientRequest& SetRequestId(std::string request_id);
  /// Instead of the client's.
  ClientRequest& SetPriority(Priority priority);

  std::int64_t num_rows() const { return num_rows_; }
  const std::string& request_id() const { return request_id_; }
  const std::optional<Priority>& priority() const { return priority_; }
  /// Its inputs, as they go on the wire.
  const std::string& packed() const { return packed_; }

 private:
  std::int64_t num_rows_;
  std::string request_id_;
  std::optional<Priority> priority_;
  std::string packed_;
};

/// One output of an answer: float32, row-major [dims...], dims[0] is B.
struct ClientOutput {
  std::string name;
  std::vector<std::int64_t> dims;
  std::vector<float> values;
};

/// The answer to a request.
struct ClientResponse {
  std::vector<ClientOutput> outputs;
  /// Who answered.
  std::string model;
  std::string version;
  /// How often the request was sent.
  int num_attempts = 1;

  /// By name; throws Error (kRequest) where the model has no such output. Of a temporary response
  /// it is a copy, so that no reference outlives the response.
  const ClientOutput& output(const std::string& name) const&;
  ClientOutput output(const std::string& name) &&;
};

/// An answer, or what the call failed with.
class ClientResult {
 public:
  ClientResult(ClientResponse response) : result_(std::move(response)) {}  // NOLINT
  ClientResult(ClientError error) : result_(std::move(error)) {}           // NOLINT

  bool ok() const { return std::holds_alternative<ClientResponse>(result_); }
  /// Only where ok().
  const ClientResponse& response() const { return std::get<ClientResponse>(result_); }
  /// Only where not ok().
  const ClientError& error() const { return std::get<ClientError>(result_); }
  /// The answer, moved out; throws the error.
  ClientResponse Take();

 private:
  std::variant<ClientResponse, ClientError> result_;
};

/// What a model takes and gives, as its server says.
struct ModelMetadata {
  std::string model;
  std::string version;
  std::string target;
  Signature signature;
  /// Of each sparse input, in the signature's order: IDs must be below; none where any ID is taken.
  std::vector<std::optional<std::int64_t>> id_limits;
  RequestLimits limits;
  /// Of the artifact's manifest, and the versions of the libraries that it was made with.
  std::string digest;
  std::string torch_version;
  std::string fbgemm_version;
  /// That were applied since the artifact was loaded.
  std::vector<std::string> deltas;
};

/// Many requests over one call. Thread-safe. Destroying it cancels what is unanswered.
class ClientStream {
 public:
  struct State;
  explicit ClientStream(std::shared_ptr<State> state);
  ~ClientStream();
  ClientStream(const ClientStream&) = delete;
  ClientStream& operator=(const ClientStream&) = delete;

  /// Queues a request and returns; its answer comes to the stream's callback, once and in any
  /// order, under its request_id. Throws Error (kRequest): it has none, or one that is still
  /// unanswered, or Finish was called; and ClientError where the stream has ended, or where it
  /// holds max_stream_bytes of unsent requests (kResourceExhausted: send it again after further
  /// answers).
  void Send(const ClientRequest& request);
  /// No more requests; waits for the answers of all. Throws ClientError where the stream itself
  /// failed. Not to be called from a callback.
  void Finish();
  /// What is unanswered ends with CANCELLED.
  void Cancel();

 private:
  std::shared_ptr<State> state_;
};

/// A client. Thread-safe; no call blocks another. Callbacks run on the client's own threads, must
/// not throw, and must not call what waits (Predict, Metadata, Finish). Destroying a client cancels
/// its calls and waits for their callbacks.
class Client {
 public:
  using Callback = std::function<void(ClientResult)>;
  using StreamCallback = std::function<void(const std::string& request_id, ClientResult)>;

  /// `address` is host:port of a server, or dns:///host:port. Connects when the first call needs
  /// it. Throws Error (kConfig): the address, an option or a file of `options.tls` cannot be used.
  explicit Client(const std::string& address, const ClientOptions& options = {});
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  ~Client();

  /// Scores the rows of a request and waits for the answer. Throws ClientError.
  ClientResponse Predict(const ClientRequest& request, const CallOptions& options = {});
  /// The same without waiting: the future holds the answer, or throws ClientError.
  std::future<ClientResponse> PredictFuture(const ClientRequest& request,
                                            const CallOptions& options = {});
  /// The same; `callback` is called exactly once.
  void PredictAsync(const ClientRequest& request, Callback callback,
                    const CallOptions& options = {});

  /// Many requests over one call: retries and the client's timeout do not apply,
  /// `options.timeout_s` is of the whole.
  std::unique_ptr<ClientStream> Stream(StreamCallback callback, const CallOptions& options = {});

  /// What the model takes and gives. Throws ClientError.
  ModelMetadata Metadata(const CallOptions& options = {});

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace recsys

#endif  // RECSYS_CLIENT_H_
