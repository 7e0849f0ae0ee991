// Fuzzes programs: a file of an artifact that says what a model computes. What is read as right has
// tensors that share no byte, steps that read what is there, and programs that say so too.
#include "ops/program/program.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "format/program_file.h"
#include "recsys/error.h"

namespace {

using recsys::FileStep;
using recsys::FileTensor;
using recsys::ProgramFile;

void Expect(bool is_right) {
  if (!is_right) __builtin_trap();
}

void CheckTensors(const ProgramFile& file, std::size_t size) {
  std::size_t num_bytes = 0;
  for (const auto* tensors : {&file.tensors, &file.weights}) {
    for (const auto& [name, tensor] : *tensors) {
      Expect(tensor.offset <= size && tensor.num_bytes <= size - tensor.offset);
      num_bytes += tensor.num_bytes;
    }
  }
  Expect(num_bytes <= size);
}

/// Reads the numbers of a program as a program binds them.
void ReadNumbers(const FileStep& step, const FileTensor& tensor, std::string_view bytes) {
  std::vector<std::int64_t> numbers(tensor.num_bytes / sizeof(std::int64_t));
  std::memcpy(numbers.data(), bytes.data() + tensor.offset, tensor.num_bytes);
  recsys::ops::Program program;
  recsys::ops::ReadProgram(numbers.data(), static_cast<std::int64_t>(numbers.size()),
                           static_cast<std::int64_t>(step.inputs.size()),
                           static_cast<std::int64_t>(step.constants.size()), &program);
}

void CheckSteps(const ProgramFile& file, std::string_view bytes) {
  std::int64_t num_places = file.num_inputs;
  for (const FileStep& step : file.steps) {
    for (const std::int64_t place : step.inputs) Expect(place >= 0 && place < num_places);
    if (step.kind == FileStep::Kind::kGather) {
      Expect(step.rows < num_places && step.index < num_places);
    } else {
      const FileTensor& tensor = file.tensors.at(step.name);
      if (step.kind == FileStep::Kind::kPlan) ReadNumbers(step, tensor, bytes);
    }
    num_places += step.num_places();
  }
  for (const auto& [name, place] : file.outputs) Expect(place >= 0 && place < num_places);
}

void Read(std::string_view bytes) {
  try {
    const ProgramFile file = recsys::ReadProgramFile(bytes);
    CheckTensors(file, bytes.size());
    CheckSteps(file, bytes);
  } catch (const recsys::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  Read({reinterpret_cast<const char*>(bytes), size});
  return 0;
}
