#ifndef RECSYS_BINDING_ANSWERED_H_
#define RECSYS_BINDING_ANSWERED_H_

// Records of answered requests for Python: in blocks of one version each, whose columns are put
// together without a Python object for each request. serve/engine/_engine.pyi documents the names.

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "engine/events.h"

namespace recsys {

/// Answered requests of one version of a model.
struct AnsweredBlock {
  std::vector<AnsweredEvent> events;
};

/// Collects events into blocks and appends ("answered", model, version, block) to a list. The GIL
/// must be held.
class AnsweredBlocks {
 public:
  explicit AnsweredBlocks(pybind11::list* list) : list_(*list) {}
  void Add(AnsweredEvent event);
  void Finish();

 private:
  pybind11::list& list_;
  std::vector<AnsweredBlock> blocks_;
};

void DefineAnswered(pybind11::module_& module);

}  // namespace recsys

#endif  // RECSYS_BINDING_ANSWERED_H_
