// Marks memory as unusable, so that AddressSanitizer reports a use after free inside the arena. Does nothing in other
// builds: the build picks poison_asan.cpp or poison_none.cpp.
#pragma once

#include <cstddef>

namespace fsdp::host {

[[nodiscard]] bool poison_works();
void poison(const void* begin, std::size_t bytes);
void unpoison(const void* begin, std::size_t bytes);
[[nodiscard]] bool is_poisoned(const void* byte);  // for tests

}  // namespace fsdp::host
