// Deltas of versions that are being served: in order, between batches, and still there after a
// rollback.

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/models/world.h"

namespace recsys {
namespace {

using Names = std::vector<std::string>;

/// Serves version 1 of a model that has three deltas.
class Deltas : public testing::Test {
 protected:
  void Start(const ModelSettings& settings = {}) {
    world_ = std::make_unique<World>(settings);
    world_->wrap["1"] = [this](AddModel& model) { model.gate = gate_; };
    world_->Add("1");
    Write("a", "1");
    Write("b", "20 dense");
    Write("unfit", "unfit");
    Write("crash", "crash");
    world_->manager().Rescan();
  }
  void Write(const std::string& name, const std::string& text) {
    WriteFile(world_->root() + "/small/deltas/" + name, text);
  }
  ModelVersionStatus Apply(const std::string& name, const std::string& version = "") {
    return world_->manager().ApplyDelta("small", version, name);
  }
  float Answered() { return world_->Ask(0).y.at(0); }

  HeardLog log_;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  std::unique_ptr<World> world_;
};

TEST_F(Deltas, AreAppliedInOrderAndTold) {
  Start();
  EXPECT_EQ(Apply("a", "1").deltas, Names{"a"});
  EXPECT_EQ(Answered(), 101);
  EXPECT_EQ(Apply("b").deltas, (Names{"a", "b"}));
  EXPECT_EQ(Answered(), 121);
  EXPECT_EQ(world_->Status("1").deltas, (Names{"a", "b"}));
  EXPECT_EQ(world_->Counts("1").deltas_applied, 2);
  EXPECT_EQ(log_.Count("model small, version 1: delta a is applied"), 1);
  EXPECT_EQ(log_.Count("model small, version 1: delta b leaves 3 dense weights as they were "
                       "exported, although they had changed when it was made; a new version brings "
                       "them"),
            1);
}

TEST_F(Deltas, WaitForTheBatchThatRuns) {
  Start();
  gate_->Close();
  auto running = world_->AskLater(0);
  gate_->WaitUntilReached();
  auto changing = std::async(std::launch::async, [this] { Apply("a"); });
  EXPECT_EQ(world_->Status("1").deltas, Names{});
  gate_->Open();
  EXPECT_EQ(running.get().y.at(0), 100);
  changing.get();
  EXPECT_EQ(Answered(), 101);
}

TEST_F(Deltas, ThatDoNotFitChangeNothingAndAreCounted) {
  Start();
  EXPECT_EQ(ErrorText(ErrorKind::kModelChange, [this] { Apply("unfit"); }),
            "delta 'unfit' cannot be applied: delta.base: got 'a', expected 'b'");
  EXPECT_EQ(log_.Count("model small, version 1: delta unfit cannot be applied: delta.base: got"),
            1);
  EXPECT_EQ(ErrorText(ErrorKind::kModelChange, [this] { Apply("crash"); }),
            "delta 'crash' cannot be applied: the model failed while it was loaded or warmed up; "
            "the log says why");
  EXPECT_EQ(Answered(), 100);
  EXPECT_EQ(world_->Status("1").deltas, Names{});
  EXPECT_EQ(world_->Counts("1").deltas_failed, 2);
  EXPECT_EQ(world_->Counts("1").deltas_applied, 0);
}

TEST_F(Deltas, ThatAreNotThereOrOfVersionsThatAreNotReadyAreRefused) {
  Start();
  world_->Add("2");
  world_->manager().SetRouting("small", Routing{"1", "", 0, "", 0});
  EXPECT_EQ(ErrorText(ErrorKind::kModelNotFound, [this] { Apply("missing"); }),
            "delta: got 'missing', expected a file in the model's folder 'deltas'");
  EXPECT_EQ(ErrorText(ErrorKind::kRequest, [this] { Apply("../1"); }),
            "delta: got '../1', expected the name of a file, without folders");
  world_->manager().Rescan();
  EXPECT_EQ(ErrorText(ErrorKind::kModelChange, [this] { Apply("a", "2"); }),
            "version '2' of model 'small' is not ready to take a delta");
  EXPECT_EQ(ErrorText(ErrorKind::kModelNotFound, [this] { Apply("a", "7"); }),
            "version: got '7', expected one of model 'small'");
}

TEST_F(Deltas, AreAppliedAgainWhereTheVersionComesBackForARollback) {
  ModelSettings settings;
  settings.keep_previous = false;
  Start(settings);
  Apply("a");
  Apply("b");
  world_->Add("2");
  world_->manager().Rescan();
  world_->Settle();
  world_->manager().Rollback("small");
  EXPECT_EQ(Answered(), 121);
  EXPECT_EQ(world_->Status("1").deltas, (Names{"a", "b"}));
}

TEST_F(Deltas, ThatAreGoneKeepTheVersionFromComingBack) {
  ModelSettings settings;
  settings.keep_previous = false;
  Start(settings);
  Apply("a");
  world_->Add("2");
  world_->manager().Rescan();
  world_->Settle();
  world_->Remove("small/deltas/a");
  EXPECT_NE(ErrorText(ErrorKind::kModelChange, [this] { world_->manager().Rollback("small"); })
                .find("delta: got 'a', expected a file"),
            std::string::npos);
  EXPECT_EQ(world_->Serving(), "2");
}

TEST_F(Deltas, OfAnotherArtifactByTheSameNameAreForgotten) {
  ModelSettings settings;
  settings.keep_previous = false;
  Start(settings);
  Apply("a");
  world_->Add("2");
  world_->manager().Rescan();
  world_->Settle();
  AddVersion(world_->root(), "small", "1", 500);
  world_->manager().Rollback("small");
  EXPECT_EQ(Answered(), 500);
  EXPECT_EQ(world_->Status("1").deltas, Names{});
}

TEST_F(Deltas, AreForgottenWhereAnOperatorUnloadsTheVersion) {
  Start();
  Apply("a");
  world_->manager().Unload("small");
  world_->manager().Load("small");
  EXPECT_EQ(Answered(), 100);
  EXPECT_EQ(world_->Status("1").deltas, Names{});
}

}  // namespace
}  // namespace recsys
