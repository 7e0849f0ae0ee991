#ifndef RECSYS_BINDING_ANSWERED_H_
#define RECSYS_BINDING_ANSWERED_H_

#include <pybind11/pybind11.h>

namespace recsys {

/// Defines AnsweredBlock: blocks of answered requests, whose columns are arrays over the block's
/// own memory. serve/engine/_engine.pyi documents it.
void DefineAnswered(pybind11::module_& module);

}  // namespace recsys

#endif  // RECSYS_BINDING_ANSWERED_H_
