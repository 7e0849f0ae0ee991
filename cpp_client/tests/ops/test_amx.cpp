// The kernels with the instructions of AMX themselves. A processor without them raises a signal at
// each; its handler here decodes the instruction and does what it would do, by the plain tiles.
// So registers, addresses and the order of operands are tested on every processor with AVX-512.

#if defined(__x86_64__) && defined(__linux__)

#include <gtest/gtest.h>
#include <signal.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>

#include "ops/cpu/amx.h"
#include "ops/kernels/kernels.h"
#include "tests/ops/layer.h"

// What the handler computes with.
#include "ops/kernels/x86/tiles.h"

namespace recsys::ops {
namespace {

/// A VEX instruction of three bytes of prefix, map 0F38 (Intel's manual, volume 2, 2.3).
struct Instruction {
  /// Map and extensions of registers, the latter inverted; then W, vvvv inverted, L and pp.
  std::uint8_t map, vex, opcode, modrm;
  /// Behind modrm.
  const std::uint8_t* rest;

  int mod() const { return modrm >> 6; }
  int reg() const { return modrm >> 3 & 7; }
  int rm() const { return modrm & 7; }
  int vvvv() const { return ~(vex >> 3) & 15; }
  /// 0, 1, 2 or 3: none, 66, F3, F2.
  int pp() const { return vex & 3; }
};

/// Registers by their numbers in instructions.
constexpr int kGeneral[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                            REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

PlainTiles emulated;
int num_emulated = 0;
bool is_released = false;

/// An operand in memory: where it begins, and the number in the index register, which is a stride.
struct Operand {
  std::int64_t address = 0;
  std::int64_t stride = 0;
  std::int64_t num_bytes = 0;
};

Operand OperandOf(const Instruction& at, const greg_t* general) {
  Operand operand;
  const int extended_base = (at.map & 0x20) == 0 ? 8 : 0;
  const int extended_index = (at.map & 0x40) == 0 ? 8 : 0;
  int base = at.rm();
  if (base == 4) {
    const std::uint8_t sib = *at.rest;
    base = sib & 7;
    ++operand.num_bytes;
    const int index = (sib >> 3 & 7) + extended_index;
    if (index != 4) operand.stride = general[kGeneral[index]] << (sib >> 6);
  }
  // Neither relative to the next instruction nor without a base: compilers make no such ones here.
  if (at.mod() == 0 && base == 5) __builtin_trap();
  operand.address = general[kGeneral[base + extended_base]];
  if (at.mod() == 1) {
    std::int8_t offset = 0;
    std::memcpy(&offset, at.rest + operand.num_bytes, sizeof(offset));
    operand.address += offset;
    operand.num_bytes += 1;
  } else if (at.mod() == 2) {
    std::int32_t offset = 0;
    std::memcpy(&offset, at.rest + operand.num_bytes, sizeof(offset));
    operand.address += offset;
    operand.num_bytes += 4;
  }
  return operand;
}

/// Does an instruction with two or three registers. Returns false if it is another.
bool DoRegisters(const Instruction& at) {
  if (at.opcode == 0x49 && at.pp() == 0 && at.modrm == 0xc0) {
    emulated.Release();
  } else if (at.opcode == 0x49 && at.pp() == 3 && at.rm() == 0) {
    emulated.Zero(at.reg());
  } else if (at.opcode == 0x5e && at.pp() == 1) {
    emulated.Dot<WeightType::kInt8>(at.reg(), at.rm(), at.vvvv());
  } else if (at.opcode == 0x5c && at.pp() == 2) {
    emulated.Dot<WeightType::kBfloat16>(at.reg(), at.rm(), at.vvvv());
  } else {
    return false;
  }
  is_released = at.opcode == 0x49 && at.pp() == 0;
  return true;
}

/// The same with an operand in memory.
bool DoMemory(const Instruction& at, const Operand& operand) {
  char* const memory = reinterpret_cast<char*>(operand.address);
  if (at.opcode == 0x49 && at.pp() == 0 && at.reg() == 0) {
    TileShapes shapes;
    std::memcpy(&shapes, memory + operand.stride, sizeof(shapes));
    emulated.Configure(shapes);
  } else if (at.opcode == 0x4b && at.pp() == 3 && at.rm() == 4) {
    emulated.Load(at.reg(), memory, operand.stride);
  } else if (at.opcode == 0x4b && at.pp() == 2 && at.rm() == 4) {
    emulated.Store(at.reg(), memory, operand.stride);
  } else {
    return false;
  }
  is_released = false;
  return true;
}

void Emulate(int /*signal*/, siginfo_t* /*info*/, void* context) {
  greg_t* const general = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto* const code = reinterpret_cast<const std::uint8_t*>(general[REG_RIP]);
  const Instruction at{code[1], code[2], code[3], code[4], code + 5};
  // W and L are zero, and tile registers have no extensions.
  const bool is_known = code[0] == 0xc4 && (at.map & 0x9f) == 0x82 && (at.vex & 0x84) == 0;
  if (!is_known) __builtin_trap();
  Operand operand;
  if (at.mod() != 3) operand = OperandOf(at, general);
  if (!(at.mod() == 3 ? DoRegisters(at) : DoMemory(at, operand))) __builtin_trap();
  general[REG_RIP] += 5 + operand.num_bytes;
  ++num_emulated;
}

/// Emulates the instructions where the processor has none.
class AmxInstructions : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasIsa(Isa::kAvx512)) GTEST_SKIP() << "this processor has no avx512";
    if (AmxOfThis() == Amx::kDenied) GTEST_SKIP() << "the system refuses some of them";
    struct sigaction action = {};
    action.sa_sigaction = &Emulate;
    action.sa_flags = SA_SIGINFO;
    ASSERT_EQ(sigaction(SIGILL, &action, &before_), 0);
    is_set_ = true;
    num_emulated = 0;
  }
  void TearDown() override {
    if (is_set_) sigaction(SIGILL, &before_, nullptr);
  }

 private:
  struct sigaction before_ = {};
  bool is_set_ = false;
};

TEST_F(AmxInstructions, PassTheCheckOfAProcessor) {
  EXPECT_TRUE(LinearLayersAgree(AmxKernels(), EmulatedAmxKernels()));
  EXPECT_EQ(num_emulated > 0, !HasIsa(Isa::kAmx));
}

/// Exits with 0 where a process that may not use tiles does without them, and says so.
void ExitWithoutTiles() {
  unsetenv("RECSYS_ISA");
  // Too small for what the system saves of tiles, so that it denies them.
  static char memory[8192];
  stack_t stack = {};
  stack.ss_sp = memory;
  stack.ss_size = sizeof(memory);
  if (sigaltstack(&stack, nullptr) != 0) std::exit(2);
  if (AmxOfThis() == Amx::kMissing) std::exit(WhyNoTiles().empty() ? 0 : 1);
  const bool is_denied = AmxOfThis() == Amx::kDenied && !HasIsa(Isa::kAmx);
  const bool is_without = ChosenIsa() == BestVectorIsa() && BestIsa() == BestVectorIsa();
  const bool is_said = WhyNoTiles().find("the system does not let") == 0;
  std::exit(is_denied && is_without && is_said ? 0 : 1);
}

TEST(AmxPermission, IsNotNeeded) {
  // In a process of its own, which has not asked for tiles.
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(ExitWithoutTiles(), testing::ExitedWithCode(0), "");
  if (HasIsa(Isa::kAmx)) {
    EXPECT_EQ(WhyNoTiles(), "");
  }
}

TEST_F(AmxInstructions, ComputeLayersAndGiveTheRegistersBack) {
  std::mt19937 random(1);
  for (const WeightType type : {WeightType::kBfloat16, WeightType::kInt8}) {
    for (const std::int64_t num_inputs : {1, 65, 130}) {
      for (const std::int64_t num_outputs : {1, 17, 64, 127}) {
        const Floats weight = Random(static_cast<std::size_t>(num_outputs * num_inputs), &random);
        const Layer layer(weight, nullptr, num_outputs, num_inputs, type);
        for (const std::int64_t num_rows : {0, 1, 16, 17, 49}) {
          const Floats in = Random(static_cast<std::size_t>(num_rows * num_inputs), &random);
          const auto outputs = [&](const Kernels& kernels) {
            Floats out(static_cast<std::size_t>(num_rows * num_outputs));
            kernels.linear(layer.packed, {in.data(), num_inputs}, num_rows, Activation::kSigmoid,
                           {out.data(), num_outputs}, nullptr);
            return out;
          };
          const Floats got = outputs(AmxKernels()), expected = outputs(EmulatedAmxKernels());
          if (num_emulated > 0) {
            ASSERT_TRUE(is_released);
          }
          for (std::size_t i = 0; i < got.size(); ++i) {
            // Processors may order sums in float32 otherwise.
            ASSERT_NEAR(got[i], expected[i], type == WeightType::kInt8 ? 0 : 1e-5)
                << num_outputs << " x " << num_inputs << ", " << num_rows;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace recsys::ops

#endif
