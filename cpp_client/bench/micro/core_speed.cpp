// Measures the cost of the request path by itself: requests of one row through gateway, checks,
// queue, executor and back, with a model that computes nothing. Prints processor time per request.
//
// core_speed [requests] [in flight] [senders]

#include <sys/resource.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/core/gateway.h"
#include "engine/core/servable.h"

namespace recsys {
namespace {

/// Bounds the number of active requests.
class Window {
 public:
  explicit Window(int size) : size_(size) {}

  void Enter() {
    for (int inside = num_inside_.load();;) {
      if (inside < size_) {
        if (num_inside_.compare_exchange_weak(inside, inside + 1)) return;
        continue;
      }
      std::unique_lock<std::mutex> lock(mutex_);
      left_.wait(lock, [this] { return num_inside_.load() <= size_ / 2; });
      inside = num_inside_.load();
    }
  }
  void Leave() {
    if (--num_inside_ != size_ / 2) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    left_.notify_all();
  }

 private:
  const int size_;
  std::atomic<int> num_inside_{0};
  std::mutex mutex_;
  std::condition_variable left_;
};

struct Wire {
  std::vector<float> dense = std::vector<float>(13, 0.5F);
  std::int32_t length = 1;
  std::int64_t id = 7;
};

template <typename T>
std::string_view BytesOf(const T* data, std::size_t num) {
  return {reinterpret_cast<const char*>(data), num * sizeof(T)};
}

class EmptyRequest : public Request {
 public:
  EmptyRequest(Window& window, const Wire& wire, int num_sparse) : window_(window) {
    raw.num_rows = 1;
    raw.dense = {{"d", BytesOf(wire.dense.data(), wire.dense.size())}};
    static const std::vector<std::string> names = [] {
      std::vector<std::string> made;
      for (int i = 0; i < 64; ++i) made.push_back("s" + std::to_string(i));
      return made;
    }();
    for (int i = 0; i < num_sparse; ++i) {
      raw.sparse.push_back(
          {names[static_cast<std::size_t>(i)], BytesOf(&wire.length, 1), BytesOf(&wire.id, 1), {}});
    }
    num_bytes = 100;
  }
  void Read(const Servable&) override {}
  Message Encode(const Servable&, const Rows&) override { return {}; }
  void Done(const Status& status, Message) override {
    if (!status.ok()) std::abort();
    window_.Leave();
  }

 private:
  Window& window_;
};

class EmptyModel : public ServedModel {
 public:
  explicit EmptyModel(int num_sparse) {
    signature_.dense = {{"d", 13}};
    for (int i = 0; i < num_sparse; ++i) {
      signature_.sparse.push_back(
          {"s" + std::to_string(i), {{"t", 1000, IdPolicy::kReject}}, "sum", false});
    }
    signature_.outputs = {{"score", {}}};
  }
  const Signature& signature() const override { return signature_; }
  Outputs Predict(const Batch& batch) override {
    Outputs outputs;
    outputs.values.emplace_back(zeros_.data(), static_cast<std::size_t>(batch.num_rows));
    return outputs;
  }
  Delta PrepareDelta(const std::string&) override { return {}; }

 private:
  Signature signature_;
  const std::vector<float> zeros_ = std::vector<float>(4096);
};

class OneModel : public Router {
 public:
  Route Find(const RouteQuery&) const override { return {servable, nullptr}; }
  std::shared_ptr<Servable> servable;
};

double ProcessorSeconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

void Measure(int num_requests, int num_in_flight, int num_senders, int num_sparse) {
  OneModel router;
  Gateway gateway(router, nullptr);
  OpenedModel opened;
  opened.model = std::make_unique<EmptyModel>(num_sparse);
  opened.info.name = "none";
  opened.info.version = "1";
  router.servable =
      std::make_shared<Servable>(std::move(opened), VersionSettings{},
                                 [&](Request& request, const Status& status, Message answer) {
                                   gateway.End(request, status, std::move(answer));
                                 });
  router.servable->Open();
  const Wire wire;
  Window window(num_in_flight);
  const double began_s = MonotonicSeconds(), used_s = ProcessorSeconds();
  std::vector<std::thread> senders;
  for (int i = 0; i < num_senders; ++i) {
    senders.emplace_back([&] {
      for (int number = 0; number < num_requests / num_senders; ++number) {
        window.Enter();
        gateway.Predict(std::make_shared<EmptyRequest>(window, wire, num_sparse));
      }
    });
  }
  for (std::thread& sender : senders) sender.join();
  gateway.WaitUntilIdle(MonotonicSeconds() + 60);
  const double us = 1e6 * (ProcessorSeconds() - used_s) / num_requests;
  const double per_s = num_requests / (MonotonicSeconds() - began_s);
  std::printf(
      "%2d sparse inputs, %d in flight, %d senders: %.2f us of processor time a request, "
      "%.0f requests/s\n",
      num_sparse, num_in_flight, num_senders, us, per_s);
  router.servable->Close();
}

}  // namespace
}  // namespace recsys

int main(int argc, char** argv) {
  const auto argument = [&](int at, int otherwise) {
    return argc > at ? std::atoi(argv[at]) : otherwise;
  };
  for (const int num_sparse : {1, 26}) {
    recsys::Measure(argument(1, 1'000'000), argument(2, 64), argument(3, 1), num_sparse);
  }
  return 0;
}
