#ifndef RECSYS_BINDING_EVENTS_H_
#define RECSYS_BINDING_EVENTS_H_

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "engine/events.h"

namespace recsys {

/// Returns the event as a tuple whose first element names its kind; serve/engine/_engine.pyi lists
/// them. The GIL must be held.
pybind11::tuple TupleOf(const Event& event);

}  // namespace recsys

#endif  // RECSYS_BINDING_EVENTS_H_
