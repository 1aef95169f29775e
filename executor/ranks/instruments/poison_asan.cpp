#include <sanitizer/asan_interface.h>

#include "executor/ranks/instruments/poison.h"

namespace fsdp::host {

bool poison_works() { return true; }
void poison(const void* begin, std::size_t bytes) { __asan_poison_memory_region(begin, bytes); }
void unpoison(const void* begin, std::size_t bytes) { __asan_unpoison_memory_region(begin, bytes); }
bool is_poisoned(const void* byte) { return __asan_address_is_poisoned(byte) != 0; }

}  // namespace fsdp::host
