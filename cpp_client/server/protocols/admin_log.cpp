#include "server/protocols/admin_log.h"

#include <google/protobuf/text_format.h>

#include <atomic>
#include <limits>
#include <utility>

#include "base/text.h"
#include "base/utf8.h"

namespace recsys {
namespace {

using google::protobuf::TextFormat;

constexpr std::size_t kMaxLoggedChars = 300;

/// Numbers as Python writes them.
class PythonNumbers : public TextFormat::FastFieldValuePrinter {
 public:
  void PrintDouble(double value, TextFormat::BaseTextGenerator* generator) const override {
    generator->PrintString(ReprFloat(value));
  }
};

/// One call: what stands in the log of it, once it has ended in one way or the other.
class Ending {
 public:
  explicit Ending(std::string what) : what_(std::move(what)) {}
  void Log(LogLevel level, const std::string& how) {
    if (!is_ended_.exchange(true)) LogAdmin(level, what_ + ": " + how);
  }

 private:
  const std::string what_;
  std::atomic<bool> is_ended_{false};
};

class LoggedCall : public UnaryCall {
 public:
  LoggedCall(std::shared_ptr<UnaryCall> call, std::shared_ptr<Ending> ending)
      : call_(std::move(call)), ending_(std::move(ending)) {}

  std::string_view Metadata(std::string_view key) const override { return call_->Metadata(key); }
  int CountMetadata(std::string_view key) const override { return call_->CountMetadata(key); }
  double deadline_s() const override { return call_->deadline_s(); }
  std::string peer() const override { return call_->peer(); }
  std::string_view method() const override { return call_->method(); }

  void Answer(Message message) override {
    ending_->Log(LogLevel::kInfo, "OK");
    call_->Answer(std::move(message));
  }
  void Fail(const Status& status) override {
    ending_->Log(LogLevel::kWarning, std::string(NameOf(status.code)) + ": " + status.text);
    call_->Fail(status);
  }

 private:
  const std::shared_ptr<UnaryCall> call_;
  const std::shared_ptr<Ending> ending_;
};

class LoggedHandler : public UnaryHandler {
 public:
  LoggedHandler(std::shared_ptr<UnaryHandler> handler, std::shared_ptr<Ending> ending)
      : handler_(std::move(handler)), ending_(std::move(ending)) {}

  void Cancelled() override {
    ending_->Log(LogLevel::kWarning, "the caller gave up");
    if (handler_) handler_->Cancelled();
  }

 private:
  const std::shared_ptr<UnaryHandler> handler_;
  const std::shared_ptr<Ending> ending_;
};

}  // namespace

void LogAdmin(LogLevel level, std::string message) {
  LogRecord record;
  record.level = level;
  record.logger = "serve.admin";
  record.message = std::move(message);
  Log(std::move(record));
}

Method LoggedMethod(std::string name, std::shared_ptr<const google::protobuf::Message> kind,
                    Method method) {
  Method logged;
  logged.unary = [name = std::move(name), kind = std::move(kind), inner = std::move(method.unary)](
                     const std::shared_ptr<UnaryCall>& call,
                     const Bytes& message) -> std::shared_ptr<UnaryHandler> {
    const auto ending = std::make_shared<Ending>(name + " {" + OneLine(*kind, message.view) +
                                                 "} from " + call->peer());
    auto handler = inner(std::make_shared<LoggedCall>(call, ending), message);
    return std::make_shared<LoggedHandler>(std::move(handler), ending);
  };
  return logged;
}

std::string OneLine(const google::protobuf::Message& kind, std::string_view data) {
  const std::unique_ptr<google::protobuf::Message> message(kind.New());
  const bool is_short = data.size() <= std::numeric_limits<int>::max();
  if (!is_short || !message->ParseFromArray(data.data(), static_cast<int>(data.size()))) {
    return std::to_string(data.size()) + " bytes that are no message";
  }
  TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  printer.SetUseUtf8StringEscaping(true);
  printer.SetHideUnknownFields(true);
  printer.SetDefaultFieldValuePrinter(std::make_unique<PythonNumbers>().release());
  std::string text;
  printer.PrintToString(*message, &text);
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return std::string(FirstChars(text, kMaxLoggedChars));
}

}  // namespace recsys
