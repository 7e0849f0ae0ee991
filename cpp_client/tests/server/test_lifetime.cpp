// A server's life, with a model that takes no files: each in a process of its own, which ends as
// the server's does.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/lifetime.h"

namespace recsys {
namespace {

// A server that does not end by itself is ended, and the test fails.
constexpr unsigned kPatienceS = 30;

class AnyModel : public ServedModel {
 public:
  AnyModel() {
    signature_.dense = {{"x", 1}};
    signature_.outputs = {{"y", {}}};
  }
  const Signature& signature() const override { return signature_; }
  std::string target_name() const override { return "fake"; }
  Outputs Predict(const Batch& batch) override {
    auto values = std::make_shared<std::vector<float>>(static_cast<std::size_t>(batch.num_rows));
    return {{Span<const float>(*values)}, values};
  }
  Delta PrepareDelta(const std::string& /*path*/) override { return {}; }

 private:
  Signature signature_;
};

/// A repository of one model that goes with it.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "server-XXXXXX").string();
    path_ = mkdtemp(name.data());
    Add("1");
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  void Add(const std::string& version) const {
    const std::filesystem::path folder = std::filesystem::path(path_) / "small" / version;
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "manifest.json") << "{}";
  }

 private:
  std::string path_;
};

/// Serves the folder until a signal comes; `on_load` is told of each version that is loaded.
[[noreturn]] void Serve(const Folder& folder, std::function<void(const std::string&)> on_load) {
  alarm(kPatienceS);
  Signals signals;
  ServerSettings settings;
  settings.port = 0;
  settings.metrics_port.reset();
  const auto open = [on_load](const std::string& path, const ModelSettings&) {
    on_load(std::filesystem::path(path).filename());
    OpenedModel opened;
    opened.model = std::make_unique<AnyModel>();
    return opened;
  };
  const auto start = [&] {
    return std::make_unique<NativeServer>(std::make_unique<Repository>(folder.path()), settings,
                                          open, nullptr);
  };
  _exit(ServeUntilStopped(signals, start, settings, true));
}

TEST(ServerDeathTest, ALookThatIsAskedForWhileTheFirstOneLoadsIsNotForgotten) {
  const Folder folder;
  const auto serve = [&folder] {
    Serve(folder, [&folder](const std::string& version) {
      if (version == "1") {
        folder.Add("2");
        kill(getpid(), SIGHUP);
      } else {
        kill(getpid(), SIGTERM);
      }
    });
  };
  EXPECT_EXIT(serve(), testing::ExitedWithCode(0), "");
}

TEST(ServerDeathTest, IsNotEndedByWhoeverStopsReadingIt) {
  const Folder folder;
  const auto serve = [&folder] {
    int ends[2];
    if (pipe(ends) != 0 || dup2(ends[1], STDOUT_FILENO) < 0) _exit(2);
    close(ends[0]);
    Serve(folder, [](const std::string&) { kill(getpid(), SIGTERM); });
  };
  EXPECT_EXIT(serve(), testing::ExitedWithCode(0), "");
}

TEST(ServerDeathTest, ThreadsOfAServerThatWriteToNobodyGoOn) {
  const auto write_to_nobody = [] {
    const Signals signals;
    std::thread([] {
      int ends[2];
      if (pipe(ends) != 0) _exit(2);
      close(ends[0]);
      _exit(write(ends[1], "x", 1) == -1 && errno == EPIPE ? 0 : 3);
    }).join();
  };
  EXPECT_EXIT(write_to_nobody(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace recsys
