// Adds `sample` and `laws` to the Python module.
#pragma once
#include <nanobind/nanobind.h>

namespace unspool {

void bind_sample(nanobind::module_& module);

}  // namespace unspool
