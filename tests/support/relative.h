// doctest::Approx tolerates epsilon * (1 + |x|): next to seconds and other small numbers everything would be equal.
// This one is relative alone.
//
//   CHECK(demand.alone.count() == relative(12e-6));
#pragma once

#include <doctest/doctest.h>

namespace fsdp {

inline doctest::Approx relative(double x) { return doctest::Approx(x).scale(1e-300); }

}  // namespace fsdp
