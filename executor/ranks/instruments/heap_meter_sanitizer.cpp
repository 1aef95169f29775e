// Under AddressSanitizer and ThreadSanitizer malloc is theirs; their hooks tell us of every block.
#include <array>
#include <cstddef>
#include <cstdint>

#include "executor/ranks/instruments/heap_meter.h"

// Of sanitizer/allocator_interface.h, which GCC does not install.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, std::size_t),
                                                         void (*on_free)(const volatile void*));

namespace fsdp::host {
namespace {

struct Block {
  const volatile void* address = nullptr;
  std::int64_t bytes = 0;
};
// Sizes are remembered here, since a block's size is no longer known when its free is reported. Blocks beyond the table
// count as never freed, which can only make the reading larger.
struct Meter {
  bool active = false;
  std::int64_t held = 0, most = 0;
  std::array<Block, 256> blocks{};
};
constinit thread_local Meter meter;

void on_malloc(const volatile void* p, std::size_t bytes) {
  if (!meter.active || p == nullptr) return;
  meter.held += static_cast<std::int64_t>(bytes);
  if (meter.held > meter.most) meter.most = meter.held;
  for (Block& b : meter.blocks)
    if (b.address == nullptr) {
      b = {p, static_cast<std::int64_t>(bytes)};
      return;
    }
}

void on_free(const volatile void* p) {
  if (!meter.active || p == nullptr) return;
  for (Block& b : meter.blocks)
    if (b.address == p) {
      meter.held -= b.bytes;
      b = {};
      return;
    }
}

}  // namespace

void heap_meter_begin() {
  [[maybe_unused]] static const int installed = __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
  meter.held = meter.most = 0;
  meter.blocks = {};
  meter.active = true;
}

std::int64_t heap_meter_end() {
  meter.active = false;
  return meter.most;
}

HeapMeterPause::HeapMeterPause() : was_active_(meter.active) { meter.active = false; }
HeapMeterPause::~HeapMeterPause() { meter.active = was_active_; }

}  // namespace fsdp::host
