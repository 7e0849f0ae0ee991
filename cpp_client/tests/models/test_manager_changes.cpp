// Operators load, unload and route while others do, and while requests come.

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/models/shadow.h"
#include "tests/models/world.h"

namespace recsys {
namespace {

using Names = std::vector<std::string>;

ModelSettings With(bool keep_previous, const Routing& routing = {}) {
  ModelSettings settings;
  settings.keep_previous = keep_previous;
  settings.routing = routing;
  return settings;
}

Routing Make(const std::string& serve, const std::string& canary = "", double canary_percent = 0,
             const std::string& shadow = "", double shadow_percent = 0) {
  return {serve, canary, canary_percent, shadow, shadow_percent};
}

/// A world that serves version 1.
class Changes : public testing::Test {
 protected:
  void Start(const ModelSettings& settings = {}, const Names& versions = {"1"}) {
    world_ = std::make_unique<World>(settings);
    for (const std::string& version : versions) world_->Add(version);
    world_->manager().Rescan();
  }
  void AddAndRescan(const std::string& version) {
    world_->Add(version);
    world_->manager().Rescan();
  }
  ModelManager& manager() { return world_->manager(); }
  std::string TextOf(ErrorKind kind, const std::function<void()>& function) {
    return ErrorText(kind, function);
  }

  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  HeardLog log_;
  std::unique_ptr<World> world_;
};

TEST_F(Changes, AVersionThatDrainsIsLoadedAgainOnceItHasLeft) {
  world_ = std::make_unique<World>(With(false));
  world_->wrap["1"] = [this](AddModel& model) { model.gate = gate_; };
  world_->Add("1");
  manager().Rescan();
  gate_->Close();
  auto waiting = world_->AskLater(1);
  gate_->WaitUntilReached();
  AddAndRescan("2");
  world_->wrap.clear();
  auto again =
      std::async(std::launch::async, [this] { return manager().Load("small", "1").state; });
  world_->ExpectAnswer("2");
  EXPECT_EQ(world_->States(), "1:draining 2:ready");
  EXPECT_EQ(world_->loads(), (Names{"1", "2"}));
  gate_->Open();
  EXPECT_EQ(again.get(), ModelState::kReady);
  EXPECT_EQ(waiting.get().version, "1");
  EXPECT_EQ(world_->States(), "1:ready 2:ready");
  world_->ExpectAnswer("1", "1");
  EXPECT_EQ(world_->Counts("1").num_ok(), 1);  // That of before went with its series.
}

TEST_F(Changes, AVersionThatAnOperatorLoadsStaysUntilItIsUnloaded) {
  Start({}, {"1", "2", "3"});
  EXPECT_EQ(manager().Load("small", "1").state, ModelState::kReady);
  EXPECT_EQ(world_->Serving(), "3");
  manager().Rescan();
  EXPECT_EQ(world_->States(), "1:ready 2:available 3:ready");
  world_->ExpectAnswer("1", "1");
  AddAndRescan("4");
  AddAndRescan("5");
  world_->Settle();
  EXPECT_EQ(world_->States(), "1:ready 2:available 3:available 4:ready 5:ready");
  manager().Unload("small", "1");
  EXPECT_EQ(world_->Status("1").state, ModelState::kAvailable);
}

TEST_F(Changes, LoadWithoutAVersionTakesTheNewest) {
  Start();
  world_->Add("2");
  EXPECT_EQ(manager().Load("small").version, "2");
  EXPECT_EQ(world_->Serving(), "2");
  manager().Load("small");
  EXPECT_EQ(world_->loads(), (Names{"1", "2"}));
}

TEST_F(Changes, AModelThatIsNewToTheRepositoryCanBeLoadedBeforeItIsLookedThrough) {
  Start();
  world_->Add("7", "later");
  EXPECT_EQ(manager().Load("later").version, "7");
  EXPECT_EQ(world_->Serving("later"), "7");
}

TEST_F(Changes, UnloadingWhatServesBringsTheOneBeforeBackAndHoldsTheVersionBack) {
  Start();
  AddAndRescan("2");
  manager().Unload("small", "2");
  manager().Rescan();
  EXPECT_EQ(world_->States(), "1:ready 2:available");
  world_->ExpectAnswer("1");
  EXPECT_EQ(manager().Load("small", "2").state, ModelState::kReady);
  EXPECT_EQ(world_->Serving(), "2");
}

TEST_F(Changes, UnloadingAModelTakesItOutUntilItIsLoadedAgain) {
  Start();
  AddAndRescan("2");
  manager().Unload("small");
  manager().Rescan();
  EXPECT_EQ(world_->States(), "1:available 2:available");
  const Answer answer = world_->Ask(1);
  EXPECT_EQ(answer.status.code, StatusCode::kNotFound);
  EXPECT_EQ(answer.status.text,
            "model: got 'small', which was unloaded, expected one that is loaded");
  EXPECT_TRUE(world_->metrics().Snapshots().empty());
  manager().Load("small");
  world_->ExpectAnswer("2");
}

TEST_F(Changes, WhatIsNotThereIsSaid) {
  Start();
  const std::vector<std::function<void()>> changes = {
      [&] { manager().Load("other"); },
      [&] { manager().Unload("other"); },
      [&] { manager().Rollback("other"); },
      [&] { manager().SetRouting("other", {}); },
      [&] { manager().ApplyDelta("other", "", "a"); },
      [&] { manager().Find("other", "", 0.5); }};
  for (const auto& change : changes) {
    EXPECT_EQ(TextOf(ErrorKind::kModelNotFound, change),
              "model: got 'other', expected 'small' (or nothing: there is only one)");
  }
  EXPECT_EQ(TextOf(ErrorKind::kModelNotFound, [&] { manager().Load("small", "7"); }),
            "version: got '7' of model 'small', expected one that lies in the repository");
  EXPECT_EQ(TextOf(ErrorKind::kModelNotFound, [&] { manager().Unload("small", "7"); }),
            "version: got '7', expected one of model 'small'");
  EXPECT_EQ(world_->States(), "1:ready");
}

TEST_F(Changes, WhileAVersionIsLoadedTheOldOneServesAndTheNewOneIsSaidToCome) {
  Start();
  world_->load_gate.Close();
  world_->Add("2");
  std::thread loading([this] { manager().Load("small", "2"); });
  world_->load_gate.WaitUntilReached();
  EXPECT_EQ(world_->States(), "1:ready 2:loading");
  world_->ExpectAnswer("1");
  EXPECT_EQ(TextOf(ErrorKind::kNotReady, [&] { manager().Find("small", "2", 0.5); }),
            "version '2' of model 'small' is being loaded; try again later");
  world_->load_gate.Open();
  loading.join();
  EXPECT_EQ(world_->Serving(), "2");
}

TEST_F(Changes, OneVersionIsLoadedAtATimeAlsoOfDifferentModels) {
  Start();
  world_->Add("2", "a");
  world_->Add("2", "b");
  world_->load_gate.Close();
  std::thread first([this] { manager().Load("a"); });
  world_->load_gate.WaitUntilReached();
  std::thread second([this] { manager().Load("b"); });
  // While it waits for its turn it is not said to be loaded.
  while (manager().names().size() < 3) std::this_thread::yield();
  EXPECT_EQ(world_->States("b").find("loading"), std::string::npos);
  EXPECT_EQ(world_->loads().size(), 2U);
  world_->load_gate.Open();
  first.join();
  second.join();
  EXPECT_EQ(world_->loads().size(), 3U);
}

TEST_F(Changes, LooksThroughTheRepositoryDoNotPileUp) {
  Start();
  world_->load_gate.Close();
  world_->Add("2");
  std::thread first([this] { manager().Rescan(); });
  world_->load_gate.WaitUntilReached();
  // The next one waits for the first, and sees what comes meanwhile; all others leave it to that
  // one.
  world_->Add("3");
  std::atomic<int> num_done{0};
  std::vector<std::thread> others;
  for (int i = 0; i < 4; ++i) {
    others.emplace_back([&] {
      manager().Rescan();
      ++num_done;
    });
  }
  while (num_done < 3) std::this_thread::yield();
  world_->load_gate.Open();
  first.join();
  for (std::thread& thread : others) thread.join();
  EXPECT_EQ(world_->Serving(), "3");
}

TEST_F(Changes, ChangesThatComeAtOnceAreMadeOneAfterTheOtherAndNoRequestFails) {
  Start({}, {"1", "2", "3", "4"});
  std::atomic<bool> is_done{false};
  std::atomic<int> num_wrong{0};
  std::thread asking([&] {
    while (!is_done) {
      if (!world_->Ask(1).status.ok()) ++num_wrong;
    }
  });
  const std::vector<std::function<void()>> changes = {
      [&] { manager().Load("small", "2"); },
      [&] { manager().Rescan(); },
      [&] { manager().SetRouting("small", Make("2", "3", 50)); },
      [&] { manager().Unload("small", "1"); },
      [&] { manager().Rollback("small"); },
      [&] { manager().Rescan(); },
      [&] { manager().Load("small", "1"); },
      [&] { manager().Unload("small", "2"); },
      [&] { manager().SetRouting("small", Make("3", "", 0, "1", 100)); },
      [&] { manager().Load("small", "4"); },
      [&] { manager().Rollback("small"); },
      [&] { manager().Rollback("small"); },
  };
  std::vector<std::thread> threads;
  for (const auto& change : changes) {
    threads.emplace_back([&change] {
      try {
        change();
      } catch (const Error& error) {
        EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(ErrorKind::kModelChange));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  is_done = true;
  asking.join();
  EXPECT_EQ(num_wrong.load(), 0);
  world_->Settle();
  world_->ExpectAnswer(world_->Serving(), world_->Serving());
}

TEST_F(Changes, AVersionThatFailedAndIsLoadedAgainCounts) {
  Start();
  world_->wrap["2"] = [](AddModel& model) {
    model.on_predict = [](float) { throw std::runtime_error("cold"); };
  };
  AddAndRescan("2");
  EXPECT_EQ(world_->States(), "1:ready 2:failed");
  EXPECT_EQ(world_->metrics().Snapshots().size(), 1U);
  world_->wrap.clear();
  manager().Load("small", "2");
  world_->ExpectAnswer("2");
  EXPECT_EQ(world_->Counts("2").num_ok(), 1);
}

TEST_F(Changes, WithoutKeepPreviousTheOldVersionLeavesAndIsLoadedForARollback) {
  Start(With(false));
  AddAndRescan("2");
  world_->Settle();
  EXPECT_EQ(world_->States(), "1:available 2:ready");
  const ModelStatus status = manager().Rollback("small");
  world_->Settle();
  EXPECT_EQ(status.serving, "1");
  EXPECT_EQ(status.routing.serve, "1");
  EXPECT_EQ(world_->States(), "1:ready 2:available");
  EXPECT_EQ(world_->loads(), (Names{"1", "2", "1"}));
}

TEST_F(Changes, AVersionMayHaveAnotherSignatureAndRequestsAreCheckedAgainstTheirs) {
  Start();
  world_->wrap["2"] = [](AddModel& model) { model.signature_.dense[0].name = "other"; };
  AddAndRescan("2");
  const Answer answer = world_->Ask(1);
  EXPECT_EQ(answer.status.code, StatusCode::kInvalidArgument);
  world_->ExpectAnswer("1", "1");
}

TEST_F(Changes, ARollbackIsInstantAndStays) {
  Start();
  EXPECT_EQ(TextOf(ErrorKind::kModelChange, [&] { manager().Rollback("small"); }),
            "model 'small' has had no other routing or version to go back to");
  AddAndRescan("2");
  const ModelStatus status = manager().Rollback("small");
  EXPECT_EQ(status.serving, "1");
  EXPECT_TRUE(status.routing == Make("1"));
  EXPECT_EQ(world_->loads(), (Names{"1", "2"}));
  world_->ExpectAnswer("1");
  AddAndRescan("3");
  EXPECT_EQ(world_->Serving(), "1");
  EXPECT_EQ(manager().Rollback("small").serving, "2");
  EXPECT_EQ(world_->loads(), (Names{"1", "2"}));
  EXPECT_EQ(manager().SetRouting("small", {}).serving, "3");
}

TEST_F(Changes, ARollbackWaitsForNoVersionThatIsBeingLoaded) {
  Start();
  AddAndRescan("2");
  world_->Add("3");
  world_->Add("4");
  world_->load_gate.Close();
  std::thread change([this] { manager().Rescan(); });
  world_->load_gate.WaitUntilReached();
  EXPECT_EQ(world_->Status("4").state, ModelState::kLoading);
  const ModelStatus status = manager().Rollback("small");
  EXPECT_EQ(status.serving, "1");
  EXPECT_TRUE(status.routing == Make("1"));
  world_->ExpectAnswer("1");
  world_->load_gate.Open();
  change.join();
  world_->Settle();
  EXPECT_EQ(world_->States(), "1:ready 2:ready 3:available 4:available");
}

TEST_F(Changes, ARoutingOnItsWayDoesNotUndoARollback) {
  Start();
  AddAndRescan("2");
  world_->Add("3");
  world_->load_gate.Close();
  std::thread change([this] {
    EXPECT_EQ(TextOf(ErrorKind::kModelChange, [&] { manager().SetRouting("small", Make("3")); }),
              "model 'small' was rolled back meanwhile; set the routing again if wanted");
  });
  world_->load_gate.WaitUntilReached();
  EXPECT_EQ(manager().Rollback("small").serving, "1");
  world_->load_gate.Open();
  change.join();
  world_->Settle();
  EXPECT_EQ(world_->States(), "1:ready 2:ready 3:available");
  EXPECT_EQ(world_->Serving(), "1");
}

TEST_F(Changes, ARollbackToWhatIsGoneChangesNothing) {
  Start(With(false));
  AddAndRescan("2");
  world_->Settle();
  world_->Remove("small/1");
  TextOf(ErrorKind::kModelNotFound, [&] { manager().Rollback("small"); });
  EXPECT_TRUE(manager().statuses().at(0).routing == Routing());
  world_->ExpectAnswer("2");
}

TEST_F(Changes, CanaryAndShadowAreLoadedAndRoutedTo) {
  Start({}, {"1", "2", "3"});
  const Routing routing = Make("1", "2", 10, "3", 20);
  manager().SetRouting("small", routing);
  EXPECT_EQ(world_->States(), "1:ready 2:ready 3:ready");
  const auto primary = [&](double draw) {
    return manager().Find("small", "", draw).primary->version();
  };
  EXPECT_EQ(primary(0.05), "2");
  EXPECT_EQ(primary(0.5), "1");
  EXPECT_EQ(primary(0.9), "1");
  EXPECT_EQ(manager().Find("small", "", 0.5).shadow, nullptr);
  const auto shadow =
      std::dynamic_pointer_cast<VersionShadow>(manager().Find("small", "", 0.9).shadow);
  ASSERT_NE(shadow, nullptr);
  EXPECT_EQ(shadow->hosted()->version(), "3");
  EXPECT_EQ(manager().Find("small", "3", 0.9).shadow, nullptr);
  TextOf(ErrorKind::kModelNotFound, [&] { manager().SetRouting("small", Make("9")); });
  EXPECT_TRUE(manager().statuses().at(0).routing == routing);
  manager().Unload("small", "2");
  EXPECT_TRUE(manager().statuses().at(0).routing == routing.Without("2"));
  EXPECT_EQ(primary(0.05), "1");
}

TEST_F(Changes, ARoutingWhoseVersionIsBrokenChangesNothing) {
  Start(With(true, Make("1")));
  world_->Add("2");
  world_->Break("3");
  TextOf(ErrorKind::kModelChange, [&] { manager().SetRouting("small", Make("2", "3", 5)); });
  world_->Settle();
  EXPECT_TRUE(manager().statuses().at(0).routing == Make("1"));
  EXPECT_EQ(world_->States(), "1:ready 2:available 3:failed");
  TextOf(ErrorKind::kModelChange, [&] { manager().Rollback("small"); });
}

TEST_F(Changes, APinnedRoutingOfTheSettingsLoadsThatVersionWhichCannotBeUnloaded) {
  Start(With(true, Make("1", "", 0, "2", 50)), {"1", "2", "3"});
  EXPECT_EQ(world_->States(), "1:ready 2:ready 3:available");
  EXPECT_EQ(world_->Serving(), "1");
  EXPECT_EQ(TextOf(ErrorKind::kModelChange, [&] { manager().Unload("small", "1"); }),
            "version '1' is the one that the routing of model 'small' serves: set another routing "
            "first, or unload the whole model");
  EXPECT_EQ(world_->States(), "1:ready 2:ready 3:available");
}

TEST_F(Changes, AModelThatIsRemovedBeforeItsLoadHasItsTurnComesBack) {
  Start();
  std::filesystem::create_directory(world_->root() + "/later");
  const auto loader = std::this_thread::get_id();
  bool is_first = true;
  // Told that the model was added, before its load begins.
  world_->changed = [&] {
    if (std::this_thread::get_id() != loader || !std::exchange(is_first, false)) return;
    std::thread([this] { manager().Rescan(); }).join();
    EXPECT_EQ(world_->Serving("later"), "no such model");
    world_->Add("7", "later");
  };
  EXPECT_EQ(manager().Load("later").version, "7");
  world_->changed = nullptr;
  EXPECT_EQ(world_->Serving("later"), "7");
  EXPECT_EQ(world_->Ask(5, "", "later").version, "7");
}

TEST_F(Changes, AModelWhoseChangeTakesLongKeepsNoOtherFromItsNewVersion) {
  world_ = std::make_unique<World>();
  world_->wrap["5"] = [this](AddModel& model) { model.gate = gate_; };
  world_->Add("5", "early");
  world_->Add("1");
  manager().Rescan();
  gate_->Close();
  auto waiting = world_->AskLater(1, "", "early");
  gate_->WaitUntilReached();
  auto unloading = std::async(std::launch::async, [this] { manager().Unload("early"); });
  while (world_->States("early") != "5:draining") std::this_thread::yield();
  world_->Add("2");
  auto rescan = std::async(std::launch::async, [this] { manager().Rescan(); });
  const double until_s = MonotonicSeconds() + 10;
  while (world_->Serving() != "2" && MonotonicSeconds() < until_s) std::this_thread::yield();
  EXPECT_EQ(world_->Serving(), "2");
  gate_->Open();
  unloading.get();
  rescan.get();
  EXPECT_EQ(waiting.get().version, "5");
}

}  // namespace
}  // namespace recsys
