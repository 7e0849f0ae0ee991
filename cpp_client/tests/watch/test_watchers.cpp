#include <gtest/gtest.h>
#include <unistd.h>

#include "base/log.h"
#include "server/core/hosted.h"
#include "server/observe/capture_file.h"
#include "server/watch/watchers.h"

namespace recsys {
namespace {

class AnyRequest : public Request {
 public:
  void Read(const Hosted& /*hosted*/) override {}
  Message Encode(const Hosted& /*hosted*/, const Rows& /*rows*/) override { return {}; }
  void Done(const Status& /*status*/, Message /*answer*/) override {}
};

class AnyModel : public ServedModel {
 public:
  const Signature& signature() const override { return signature_; }
  std::string target_name() const override { return "cpu"; }
  Outputs Predict(const Batch& /*batch*/) override { return {}; }
  Delta PrepareDelta(const std::string& /*path*/) override { return {}; }

 private:
  Signature signature_;
};

std::shared_ptr<Hosted> HostedOf(const std::string& name, const std::string& version,
                                 Metrics& metrics) {
  OpenedModel opened;
  opened.model = std::make_unique<AnyModel>();
  opened.info.name = name;
  opened.info.version = version;
  return std::make_shared<Hosted>(std::move(opened), ModelSettings(), metrics,
                                  [](Request&, const Status&, Message) {});
}

/// What is said while it lives.
class Heard {
 public:
  Heard() {
    SetLogSink([this](LogRecord record) { records_.push_back(std::move(record)); });
  }
  ~Heard() { SetLogSink(nullptr); }
  const std::vector<LogRecord>& records() const { return records_; }

 private:
  std::vector<LogRecord> records_;
};

LogSettings Logging(const std::string& requests) {
  LogSettings settings;
  settings.requests = requests;
  return settings;
}

const Status kInvalid{StatusCode::kInvalidArgument, "num_rows: wrong", 0};

std::string TextOf(const LogRecord& record, const std::string& name) {
  for (const auto& [key, value] : record.fields) {
    if (key != name) continue;
    if (const auto* const text = std::get_if<std::string>(&value)) return *text;
    if (const auto* const whole = std::get_if<std::int64_t>(&value)) return std::to_string(*whole);
    if (const auto* const number = std::get_if<double>(&value)) return std::to_string(*number);
  }
  return "-";
}

TEST(RequestLog, HasALineWithTheFieldsOfARequestThatWentWrong) {
  const Heard heard;
  double now_s = 50.0;
  RequestLog log(Logging("errors"), [&now_s] { return now_s; });
  AnyRequest request;
  request.model = "asked";
  request.version = "3";
  request.request_id = "visit-12";
  request.protocol = "kserve";
  request.started_s = 49.99;
  request.checked.num_rows = 7;
  log.Ended(request, "not_found", {StatusCode::kNotFound, "no such model", 0});
  ASSERT_EQ(heard.records().size(), 1U);
  const LogRecord& record = heard.records()[0];
  EXPECT_EQ(record.level, LogLevel::kWarning);
  EXPECT_EQ(record.logger, "serve.requests");
  EXPECT_EQ(record.message, "request");
  std::vector<std::string> names;
  for (const auto& [name, value] : record.fields) names.push_back(name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"model", "version", "request_id", "protocol", "outcome",
                                      "code", "num_rows", "duration_ms", "reason"}));
  EXPECT_EQ(TextOf(record, "model"), "asked");
  EXPECT_EQ(TextOf(record, "version"), "3");
  EXPECT_EQ(TextOf(record, "request_id"), "visit-12");
  EXPECT_EQ(TextOf(record, "protocol"), "kserve");
  EXPECT_EQ(TextOf(record, "outcome"), "not_found");
  EXPECT_EQ(TextOf(record, "code"), "NOT_FOUND");
  EXPECT_EQ(TextOf(record, "num_rows"), "0");
  EXPECT_EQ(TextOf(record, "duration_ms"), "10.000000");
  EXPECT_EQ(TextOf(record, "reason"), "no such model");
}

TEST(RequestLog, NamesWhoAnsweredAndHowManyRows) {
  const Heard heard;
  Metrics metrics;
  RequestLog log(Logging("all"));
  AnyRequest request;
  request.hosted = HostedOf("dlrm", "9f", metrics);
  request.checked.num_rows = 7;
  log.Ended(request, "ok", Status());
  log.Ended(request, "failed", {StatusCode::kInternal, "x", 0});
  log.Ended(request, "invalid", kInvalid);
  ASSERT_EQ(heard.records().size(), 3U);
  EXPECT_EQ(heard.records()[0].level, LogLevel::kInfo);
  EXPECT_EQ(TextOf(heard.records()[0], "model"), "dlrm");
  EXPECT_EQ(TextOf(heard.records()[0], "version"), "9f");
  EXPECT_EQ(TextOf(heard.records()[0], "num_rows"), "7");
  EXPECT_EQ(TextOf(heard.records()[0], "code"), "OK");
  EXPECT_EQ(heard.records()[1].level, LogLevel::kError);
  EXPECT_EQ(TextOf(heard.records()[2], "num_rows"), "0");
}

TEST(RequestLog, HasTheLinesThatWereAskedForAlone) {
  for (const auto& [requests, expected] :
       {std::pair<const char*, std::size_t>{"none", 0}, {"errors", 1}, {"all", 2}}) {
    const Heard heard;
    RequestLog log(Logging(requests));
    AnyRequest request;
    log.Ended(request, "ok", Status());
    log.Ended(request, "invalid", kInvalid);
    EXPECT_EQ(heard.records().size(), expected) << requests;
  }
}

TEST(RequestLog, HasAtMostAHundredErrorsASecondAndSaysHowManyThereWereMore) {
  const Heard heard;
  double now_s = 0.0;
  RequestLog log(Logging("all"), [&now_s] { return now_s; });
  AnyRequest request;
  for (int i = 0; i < 150; ++i) log.Ended(request, "invalid", kInvalid);
  EXPECT_EQ(heard.records().size(), 100U);
  log.Ended(request, "ok", Status());
  EXPECT_EQ(TextOf(heard.records().back(), "left_out"), "-");
  now_s = 1.0;
  log.Ended(request, "invalid", kInvalid);
  EXPECT_EQ(TextOf(heard.records().back(), "left_out"), "50");
  log.Ended(request, "invalid", kInvalid);
  EXPECT_EQ(TextOf(heard.records().back(), "left_out"), "-");
}

TEST(Watchers, AreThoseThatSettingsAskFor) {
  Metrics metrics;
  ServerSettings settings;
  EXPECT_EQ(Watchers(settings, metrics).all().size(), 1U);
  settings.log.requests = "none";
  EXPECT_EQ(Watchers(settings, metrics).all().size(), 0U);
}

TEST(Watchers, CaptureWhatWasAcceptedAndShowItOnThePageAlsoAfterTheirEnd) {
  std::string folder = testing::TempDir() + "recsys-watchers-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  Metrics metrics;
  ServerSettings settings;
  settings.capture = CaptureSettings();
  settings.capture->path = folder + "/requests.capture";
  settings.capture->share = 1.0;
  {
    Watchers watchers(settings, metrics, [] {
      return std::map<std::string, std::int64_t>{{"dropped", 4}};
    });
    AnyRequest request;
    request.hosted = HostedOf("dlrm", "9f", metrics);
    request.raw.num_rows = 5;
    for (Watcher* const watcher : watchers.all()) {
      watcher->Accepted(request);
      watcher->Ended(request, "ok", Status());
    }
  }
  CaptureReader reader(settings.capture->path);
  const auto found = reader.Next();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->model, "dlrm");
  EXPECT_EQ(found->version, "9f");
  EXPECT_EQ(found->data, SerializedForCapture({5, {}, {}, {}, {}}));
  const std::string page = metrics.Page();
  EXPECT_NE(page.find("recsys_captured_requests_total{result=\"written\"} 1.0"), page.npos);
  EXPECT_NE(page.find("recsys_log_records_dropped_total 4.0"), page.npos);
  unlink(settings.capture->path.c_str());
  rmdir(folder.c_str());
}

TEST(Watchers, SeeRequestsThatEndAfterTheyWereClosed) {
  std::string folder = testing::TempDir() + "recsys-watchers-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const Heard heard;
  Metrics metrics;
  ServerSettings settings;
  settings.capture = CaptureSettings();
  settings.capture->path = folder + "/requests.capture";
  settings.capture->share = 1.0;
  Watchers watchers(settings, metrics);
  AnyRequest request;
  request.hosted = HostedOf("dlrm", "9f", metrics);
  const auto see = [&] {
    for (Watcher* const watcher : watchers.all()) {
      watcher->Accepted(request);
      watcher->Ended(request, "invalid", kInvalid);
    }
  };
  see();
  watchers.Close();
  see();
  watchers.Close();
  EXPECT_EQ(heard.records().size(), 2U);
  const std::string page = metrics.Page();
  EXPECT_NE(page.find("recsys_captured_requests_total{result=\"written\"} 1.0"), page.npos);
  EXPECT_NE(page.find("recsys_captured_requests_total{result=\"dropped\"} 1.0"), page.npos);
  unlink(settings.capture->path.c_str());
  rmdir(folder.c_str());
}

}  // namespace
}  // namespace recsys
