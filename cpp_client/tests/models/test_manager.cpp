// Versions come and go under requests: what the repository holds, swaps, failures, the end.

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "tests/models/world.h"

namespace recsys {
namespace {

using Names = std::vector<std::string>;

ModelSettings Forgetful() {
  ModelSettings settings;
  settings.keep_previous = false;
  return settings;
}

TEST(Manager, TheNewestVersionIsLoadedAndNoOther) {
  World world;
  world.Add("1");
  world.Add("2");
  EXPECT_EQ(ErrorText(ErrorKind::kNotReady, [&] { world.manager().Find("", "", 0.5); }),
            "no model is ready yet; try again later");
  world.manager().Rescan();
  EXPECT_EQ(world.States(), "1:available 2:ready");
  world.ExpectAnswer("2");
  EXPECT_EQ(
      ErrorText(ErrorKind::kModelNotFound, [&] { world.manager().Find("small", "1", 0.5); }),
      "version: got '1' of model 'small', expected one that is loaded, or nothing for the one "
      "that serves");
  const auto [model, routing, serving, versions] = world.manager().statuses().at(0);
  EXPECT_EQ(model, "small");
  EXPECT_TRUE(routing == Routing());
  EXPECT_EQ(serving, "2");
  EXPECT_EQ(versions[0].digest, "");
  EXPECT_EQ(versions[1].digest, "digest-200");
  EXPECT_EQ(versions[1].table_bytes, 80);
}

TEST(Manager, AServerIsReadyOnceAllWasLookedThroughAndSomethingServes) {
  HeardLog log;
  World world;
  world.Add("1");
  world.Add("1", "another");
  WriteFile(world.root() + "/broken/1/manifest.json", "broken");
  std::atomic<int> num_early{0};
  // Asked of within every change, and from the thread that makes it.
  world.changed = [&] {
    if (world.manager().IsReady() && world.manager().statuses().size() < 3) ++num_early;
  };
  world.load_gate.Close();
  std::thread rescan([&] { world.manager().Rescan(); });
  world.load_gate.WaitUntilReached();
  EXPECT_FALSE(world.manager().IsReady());
  world.load_gate.Open();
  rescan.join();
  EXPECT_EQ(num_early.load(), 0);
  EXPECT_TRUE(world.manager().IsReady());
  EXPECT_TRUE(world.manager().IsReady("small"));
  EXPECT_FALSE(world.manager().IsReady("broken"));
  EXPECT_FALSE(world.manager().IsReady("nothing"));
  world.manager().Unload("small");
  EXPECT_TRUE(world.manager().IsReady());
  world.manager().Unload("another");
  EXPECT_FALSE(world.manager().IsReady());
  EXPECT_EQ(world.manager().names(), (Names{"another", "broken", "small"}));
}

TEST(Manager, ANewVersionTakesOverAndTheOneBeforeStaysForARollback) {
  World world;
  world.Add("1");
  world.manager().Rescan();
  world.Add("2");
  world.manager().Rescan();
  EXPECT_EQ(world.States(), "1:ready 2:ready");
  world.ExpectAnswer("2");
  world.ExpectAnswer("1", "1");
  world.Add("3");
  world.manager().Rescan();
  world.Settle();
  EXPECT_EQ(world.States(), "1:available 2:ready 3:ready");
  EXPECT_EQ(world.loads(), (Names{"1", "2", "3"}));
}

TEST(Manager, RequestsThatAnOldVersionHasAcceptedAreAnsweredByIt) {
  const auto gate = std::make_shared<Gate>();
  World world(Forgetful());
  world.wrap["1"] = [&](AddModel& model) { model.gate = gate; };
  world.Add("1");
  world.manager().Rescan();
  gate->Close();
  std::vector<std::future<Answer>> waiting;
  for (int i = 0; i < 3; ++i) waiting.push_back(world.AskLater(1));
  gate->WaitUntilReached();
  world.Add("2");
  world.manager().Rescan();
  EXPECT_EQ(world.States(), "1:draining 2:ready");
  world.ExpectAnswer("2");
  gate->Open();
  for (auto& answer : waiting) EXPECT_EQ(answer.get().version, "1");
  world.Settle();
  EXPECT_EQ(world.States(), "1:available 2:ready");
}

TEST(Manager, ABrokenVersionLeavesTheOldOneServingAndIsTriedAgainOnceItsFilesChange) {
  HeardLog log;
  World world;
  world.Add("1");
  world.manager().Rescan();
  world.Break("2");
  for (int i = 0; i < 3; ++i) world.manager().Rescan();
  EXPECT_EQ(world.loads(), (Names{"1", "2"}));
  EXPECT_EQ(world.States(), "1:ready 2:failed");
  EXPECT_EQ(world.Status("2").reason, "part 'rows.bin': got 1 bytes");
  EXPECT_TRUE(world.Status("2").is_unusable);
  world.ExpectAnswer("1");
  EXPECT_EQ(ErrorText(ErrorKind::kModelChange, [&] { world.manager().Load("small", "2"); }),
            "version '2' of model 'small' cannot be loaded: part 'rows.bin': got 1 bytes");
  EXPECT_EQ(log.Count("model small, version 2, cannot be loaded: part 'rows.bin': got 1 bytes"), 2);
  world.Add("2");
  world.manager().Rescan();
  EXPECT_EQ(world.States(), "1:ready 2:ready");
  EXPECT_EQ(world.Status("2").reason, "");
  world.ExpectAnswer("2");
}

TEST(Manager, WhereTheNewestIsBrokenFromTheStartTheNextOlderServes) {
  HeardLog log;
  World world;
  world.Add("1");
  world.Add("2");
  world.Break("3");
  world.manager().Rescan();
  EXPECT_EQ(world.States(), "1:available 2:ready 3:failed");
  EXPECT_EQ(world.loads(), (Names{"3", "2"}));
}

struct Failure {
  std::function<void(AddModel&)> how;
  std::string reason;
};

TEST(Manager, ReasonsTellNoPathsAndTheLogTellsAll) {
  const std::string failed = "the model failed while it was loaded or warmed up; the log says why";
  const std::vector<Failure> failures = {
      {[](AddModel&) { throw std::runtime_error("in /secret/place"); }, failed},
      {[](AddModel&) { throw Error(ErrorKind::kInternal, "in /secret/place"); }, failed},
      {[](AddModel& model) {
         model.on_predict = [](float) { throw std::runtime_error("in /secret/place"); };
       },
       failed},
      {[](AddModel&) { throw std::bad_alloc(); }, "there is too little memory"},
      {[](AddModel&) {
         throw std::system_error(EACCES, std::generic_category(), "in /secret/place");
       },
       "a file cannot be read (PermissionError); the log says more"}};
  for (const Failure& failure : failures) {
    HeardLog log;
    World world;
    world.wrap["1"] = failure.how;
    world.Add("1");
    world.manager().Rescan();
    EXPECT_EQ(world.Status("1").reason, failure.reason);
    EXPECT_FALSE(world.Status("1").is_unusable);
    const auto records = log.records(LogLevel::kError);
    ASSERT_EQ(records.size(), 1U);
    EXPECT_EQ(records[0].message, "model small, version 1, cannot be loaded");
    EXPECT_NE(records[0].exception, "");
  }
}

TEST(Manager, AVersionDeletedFromTheDiskKeepsServing) {
  HeardLog log;
  World world;
  world.Add("1");
  world.manager().Rescan();
  world.Remove("small");
  world.manager().Rescan();
  world.ExpectAnswer("1");
  world.Remove("");
  world.manager().Rescan();
  EXPECT_EQ(log.Count("the repository cannot be read: [Errno 2] No such file or directory: '" +
                      world.root() + "'; what is loaded goes on serving"),
            1);
  world.ExpectAnswer("1");
  WriteFile(world.root() + "/README", "");
  world.manager().Unload("small");
  world.manager().Rescan();
  EXPECT_TRUE(world.manager().statuses().empty());
  EXPECT_EQ(ErrorText(ErrorKind::kModelNotFound, [&] { world.manager().Find("small", "", 0.5); }),
            "model: got 'small', but there is none");
}

TEST(Manager, SeveralModelsAreToldApartByName) {
  World world;
  world.Add("1");
  world.Add("3", "large");
  world.manager().Rescan();
  EXPECT_EQ(world.Ask(1, "", "large").version, "3");
  EXPECT_EQ(world.Ask(1, "", "small").version, "1");
  const Answer answer = world.Ask(1);
  EXPECT_EQ(answer.status.code, StatusCode::kNotFound);
  EXPECT_EQ(answer.status.text, "model: got '', expected one of 'large', 'small'");
}

TEST(Manager, AFolderWithoutVersionsIsNoModel) {
  World world;
  world.Add("1");
  WriteFile(world.root() + "/empty/deltas/a", "");
  world.manager().Rescan();
  EXPECT_EQ(world.manager().names(), Names{"small"});
  EXPECT_TRUE(world.manager().IsReady());
  EXPECT_EQ(ErrorText(ErrorKind::kModelNotFound, [&] { world.manager().Load("empty"); }),
            "model: got 'empty', expected one with versions in the repository");
}

TEST(Manager, WhatLacksAVersionThatAnswersIsSaidWithItsReasons) {
  HeardLog log;
  World world;
  const auto check = [&](bool every) {
    try {
      world.manager().CheckServing(every);
      return std::string("fine");
    } catch (const NotServingError& error) {
      return std::string(error.is_unusable() ? "unusable: " : "") + error.what();
    }
  };
  world.manager().Rescan();
  EXPECT_EQ(check(false), "there is no model to serve");
  world.Break("1");
  world.manager().Rescan();
  EXPECT_EQ(check(false),
            "unusable: no version could be made ready of 'small': small 1: part 'rows.bin': got 1 "
            "bytes");
  world.Add("1", "good");
  world.manager().Rescan();
  EXPECT_EQ(check(false), "fine");
  EXPECT_EQ(check(true).substr(0, 52), "unusable: no version could be made ready of 'small':");
  world.wrap["2"] = [](AddModel&) { throw std::bad_alloc(); };
  world.Add("2");
  world.manager().Rescan();
  EXPECT_EQ(check(true).substr(0, 3), "no ");
}

TEST(Manager, ClosingAnswersWhatWasAcceptedAndTakesNoMore) {
  const auto gate = std::make_shared<Gate>();
  World world;
  world.wrap["1"] = [&](AddModel& model) { model.gate = gate; };
  world.Add("1");
  world.manager().Rescan();
  gate->Close();
  auto waiting = world.AskLater(1);
  gate->WaitUntilReached();
  EXPECT_FALSE(world.manager().Close(MonotonicSeconds() + 0.01));
  EXPECT_EQ(world.Ask(1).status.code, StatusCode::kUnavailable);
  EXPECT_EQ(ErrorText(ErrorKind::kDraining, [&] { world.manager().Load("small", "1"); }),
            "the server is stopping");
  gate->Open();
  EXPECT_TRUE(world.manager().Close(MonotonicSeconds() + 60));
  EXPECT_EQ(waiting.get().version, "1");
}

TEST(Manager, AVersionThatIsBeingLoadedWhenTheServerStopsIsClosedToo) {
  World world;
  world.Add("1");
  world.load_gate.Close();
  std::string text;
  std::thread loading(
      [&] { text = ErrorText(ErrorKind::kDraining, [&] { world.manager().Load("small", "1"); }); });
  world.load_gate.WaitUntilReached();
  EXPECT_TRUE(world.manager().Close(MonotonicSeconds() + 0.01));
  world.load_gate.Open();
  loading.join();
  EXPECT_EQ(text, "the server is stopping");
  EXPECT_EQ(world.States(), "1:available");
}

TEST(Manager, AVersionsMemoryIsFreedByTheThreadThatSawItLeaveAndBeforeItIsSaidToHaveLeft) {
  std::mutex mutex;
  std::thread::id freed_by;
  World world(Forgetful());
  world.wrap["1"] = [&](AddModel& model) {
    model.on_freed = [&] {
      const std::lock_guard<std::mutex> lock(mutex);
      freed_by = std::this_thread::get_id();
    };
  };
  world.Add("1");
  world.manager().Rescan();
  // Whoever routed to it holds it a moment longer than the routing does.
  Route held = world.manager().Find("", "", 0.5);
  world.Add("2");
  world.manager().Rescan();
  EXPECT_EQ(world.States(), "1:draining 2:ready");
  held = {};
  world.Settle();
  const std::lock_guard<std::mutex> lock(mutex);
  EXPECT_NE(freed_by, std::thread::id());
  EXPECT_NE(freed_by, std::this_thread::get_id());
}

TEST(Manager, WhoHoldsAVersionForTooLongDoesNotKeepItFromLeaving) {
  std::atomic<bool> is_freed{false};
  World world(Forgetful());
  world.wrap["1"] = [&](AddModel& model) { model.on_freed = [&] { is_freed = true; }; };
  world.Add("1");
  world.manager().Rescan();
  Route held = world.manager().Find("", "", 0.5);
  world.manager().Unload("small");
  EXPECT_EQ(world.States(), "1:available");
  EXPECT_FALSE(is_freed.load());
  held = {};
  EXPECT_TRUE(is_freed.load());
}

/// Its oldest version goes as soon as it has been listed.
class Vanishing : public ModelSource {
 public:
  explicit Vanishing(World*& world) : world_(world) {}
  std::vector<std::string> Versions(const std::string& name) override {
    std::vector<std::string> found = Repository(world_->root()).Versions(name);
    world_->Remove(name + "/" + found[0]);
    return found;
  }
  std::vector<std::string> Names() override { return Repository(world_->root()).Names(); }
  std::string Path(const std::string& name, const std::string& version) override {
    return Repository(world_->root()).Path(name, version);
  }
  std::string DeltaPath(const std::string&, const std::string&) override { return ""; }

 private:
  World*& world_;
};

TEST(Manager, AVersionThatIsDeletedWhileTheFolderIsReadIsPassedOver) {
  World* at = nullptr;
  World world({}, std::make_unique<Vanishing>(at));
  at = &world;
  world.Add("1");
  world.Add("2");
  world.manager().Rescan();
  world.ExpectAnswer("2");
  EXPECT_EQ(world.States(), "2:ready");
}

}  // namespace
}  // namespace recsys
