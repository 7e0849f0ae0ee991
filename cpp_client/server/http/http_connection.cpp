#include "server/http/http_connection.h"

#include <algorithm>
#include <ctime>
#include <utility>

namespace recsys {
namespace {

constexpr std::size_t kReadBytes = 16 << 10;
// Of one connection before the others have their turn.
constexpr int kMaxSteps = 64;
constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";

std::string DateText() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  char text[64];
  const std::size_t size = std::strftime(text, sizeof(text), "%d ? %Y %H:%M:%S GMT", &parts);
  std::string date(text, size);
  date.replace(date.find('?'), 1, kMonths[parts.tm_mon]);
  return std::string(kDays[parts.tm_wday]) + ", " + date;
}

std::string HeadOf(const HttpResponse& response, bool closes) {
  std::string head = "HTTP/1.1 " + std::to_string(response.status) + ' ';
  head.append(HttpReason(response.status)).append("\r\nContent-Type: ");
  head.append(response.content_type).append("\r\nContent-Length: ");
  head.append(std::to_string(response.body.num_bytes())).append("\r\nDate: ").append(DateText());
  for (const HttpHeader& header : response.headers) {
    head.append("\r\n").append(header.name).append(": ").append(header.value);
  }
  head.append(closes ? "\r\nConnection: close" : "\r\nConnection: keep-alive");
  return head += "\r\n\r\n";
}

}  // namespace

HttpConnection::HttpConnection(const HttpShared& shared, std::uint64_t id, FileHandle file,
                               const std::shared_ptr<SSL_CTX>& tls)
    : shared_(shared),
      id_(id),
      stream_(std::move(file), tls),
      parser_(shared.limits),
      ends_s_(shared.clock() + shared.times.connection_s) {
  SetStage(Stage::kHandshake, shared_.times.idle_s);
}

HttpConnection::~HttpConnection() { Close(); }

double HttpConnection::due_s() const {
  const double until_s = stage_ == Stage::kAnswering ? deadline_s_ : stage_ends_s_;
  return std::min(ends_s_, until_s);
}

void HttpConnection::SetStage(Stage stage, double seconds) {
  stage_ = stage;
  stage_ends_s_ = shared_.clock() + seconds;
  if (stage == Stage::kAnswering || stage == Stage::kClosed) interest_ = Interest::kNone;
}

void HttpConnection::Close() {
  if (stage_ == Stage::kClosed) return;
  SetStage(Stage::kClosed, 0);
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->Gone();
}

void HttpConnection::Proceed() {
  // What TLS holds back is not seen by who waits for the socket.
  for (int i = 0; i < kMaxSteps || stream_.has_pending(); ++i) {
    if (!Step()) return;
  }
}

bool HttpConnection::Step() {
  switch (stage_) {
    case Stage::kHandshake:
      return Shake();
    case Stage::kReading:
      return Read();
    case Stage::kWriting:
      return Write();
    case Stage::kLingering:
      return Linger();
    case Stage::kAnswering:
    case Stage::kClosed:
      return false;
  }
  return false;
}

/// Whether the stream has done what it was to; else it is known what is waited for.
bool HttpConnection::Await(HttpStream::Result result) {
  switch (result) {
    case HttpStream::Result::kOk:
      return true;
    case HttpStream::Result::kWantsRead:
      interest_ = Interest::kRead;
      return false;
    case HttpStream::Result::kWantsWrite:
      interest_ = Interest::kWrite;
      return false;
    case HttpStream::Result::kEnd:
      Close();
      return false;
  }
  return false;
}

bool HttpConnection::Shake() {
  if (!Await(stream_.Begin())) return false;
  SetStage(Stage::kReading, shared_.times.idle_s);
  interest_ = Interest::kRead;
  return true;
}

bool HttpConnection::Read() {
  if (!ahead_.empty()) return Parse(std::exchange(ahead_, {}));
  char data[kReadBytes];
  std::size_t num_bytes = 0;
  if (!Await(stream_.Read(data, sizeof(data), &num_bytes))) return false;
  return Parse({data, num_bytes});
}

bool HttpConnection::Parse(std::string_view data) {
  const bool had_head = parser_.state() == HttpParser::State::kBody;
  const std::size_t used = parser_.Feed(data);
  switch (parser_.state()) {
    case HttpParser::State::kHead:
      return true;
    case HttpParser::State::kBody:
      if (!had_head) SetStage(Stage::kReading, shared_.times.body_s);
      if (parser_.expects_continue() && !std::exchange(has_continued_, true)) {
        std::size_t num_bytes = 0;
        // So few bytes fit; where they do not, the client sends its body without them.
        stream_.Write(kContinue, &num_bytes);
      }
      return true;
    case HttpParser::State::kFailed:
      Refuse(parser_.fault(), parser_.fault_text());
      return true;
    case HttpParser::State::kDone:
      ahead_ = data.substr(used);
      Begin();
      return true;
  }
  return false;
}

void HttpConnection::Begin() {
  closes_ = !parser_.keeps_alive() || !shared_.keeps_alive;
  has_continued_ = false;
  HttpRequest request = parser_.Take();
  is_head_ = request.method == "HEAD";
  deadline_s_ = std::numeric_limits<double>::infinity();
  SetStage(Stage::kAnswering, 0);
  exchange_ = std::make_shared<HttpExchange>(std::move(request), shared_.mailbox, id_, ++number_);
  // Held here too: the handler may answer and let go.
  const auto exchange = exchange_;
  shared_.handler.Handle(exchange);
}

void HttpConnection::Refuse(HttpFault fault, const std::string& text) {
  is_head_ = parser_.request().method == "HEAD";
  closes_ = true;
  Respond(shared_.handler.Refuse(parser_.request(), fault, text));
}

void HttpConnection::Take(HttpMailbox::Letter letter) {
  if (letter.number != number_ || stage_ != Stage::kAnswering) return;
  if (letter.deadline_s != 0.0) {
    deadline_s_ = letter.deadline_s;
    return;
  }
  exchange_.reset();
  Respond(std::move(letter.response));
  Proceed();
}

void HttpConnection::Respond(HttpResponse response) {
  closes_ = closes_ || response.closes || is_finishing_;
  outgoing_ = Message::Of(HeadOf(response, closes_));
  if (!is_head_) {
    for (Bytes& part : response.body.parts) outgoing_.parts.push_back(std::move(part));
  }
  part_ = part_bytes_ = 0;
  SetStage(Stage::kWriting, shared_.times.idle_s);
}

bool HttpConnection::Write() {
  while (part_ < outgoing_.parts.size()) {
    const std::string_view left = outgoing_.parts[part_].view.substr(part_bytes_);
    std::size_t num_bytes = 0;
    if (!Await(stream_.Write(left, &num_bytes))) return false;
    part_bytes_ += num_bytes;
    if (part_bytes_ == outgoing_.parts[part_].view.size()) {
      ++part_;
      part_bytes_ = 0;
    }
    stage_ends_s_ = shared_.clock() + shared_.times.idle_s;
  }
  outgoing_ = Message();
  if (closes_) {
    // Were it closed at once with bytes unread, the client might not see the answer.
    stream_.EndWriting();
    SetStage(Stage::kLingering, shared_.times.linger_s);
  } else {
    SetStage(Stage::kReading, shared_.times.idle_s);
  }
  interest_ = Interest::kRead;
  return true;
}

bool HttpConnection::Linger() {
  char data[kReadBytes];
  std::size_t num_bytes = 0;
  return Await(stream_.Read(data, sizeof(data), &num_bytes));
}

void HttpConnection::HungUp() {
  // Where it is read or written, that shows by itself.
  if (stage_ == Stage::kAnswering) Close();
}

void HttpConnection::TimedOut() {
  const double now_s = shared_.clock();
  if (stage_ == Stage::kAnswering && now_s < ends_s_) {
    deadline_s_ = std::numeric_limits<double>::infinity();
    const auto exchange = exchange_;
    exchange->TooLate();
  } else if (stage_ == Stage::kReading && now_s < ends_s_ &&
             parser_.state() == HttpParser::State::kBody) {
    Refuse(HttpFault::kBodyTimeout, "");
    Proceed();
  } else {
    Close();
  }
}

void HttpConnection::Finish() {
  is_finishing_ = true;
  const bool is_between =
      stage_ == Stage::kHandshake || stage_ == Stage::kReading || stage_ == Stage::kLingering;
  if (is_between) Close();
  closes_ = true;
}

}  // namespace recsys
