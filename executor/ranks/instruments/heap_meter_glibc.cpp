// Defines malloc and its relatives for the whole program on top of glibc's own, as its manual allows ("Replacing
// malloc"), and counts per thread while that thread is being metered.
#include <malloc.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "executor/ranks/instruments/heap_meter.h"

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void __libc_free(void*);
}

namespace fsdp::host {
namespace {

struct Meter {
  bool active = false;
  std::int64_t held = 0, most = 0;
};
constinit thread_local Meter meter;

void* count(void* p) {
  if (meter.active && p != nullptr) {
    meter.held += static_cast<std::int64_t>(malloc_usable_size(p));
    if (meter.held > meter.most) meter.most = meter.held;
  }
  return p;
}

void discount(void* p) {
  if (meter.active && p != nullptr) meter.held -= static_cast<std::int64_t>(malloc_usable_size(p));
}

void* count_aligned(std::size_t alignment, std::size_t bytes) { return count(__libc_memalign(alignment, bytes)); }

}  // namespace

void heap_meter_begin() { meter = {true, 0, 0}; }

std::int64_t heap_meter_end() {
  meter.active = false;
  return meter.most;
}

HeapMeterPause::HeapMeterPause() : was_active_(meter.active) { meter.active = false; }
HeapMeterPause::~HeapMeterPause() { meter.active = was_active_; }

}  // namespace fsdp::host

extern "C" {

void* malloc(std::size_t bytes) { return fsdp::host::count(__libc_malloc(bytes)); }
void* calloc(std::size_t n, std::size_t bytes) { return fsdp::host::count(__libc_calloc(n, bytes)); }
void free(void* p) {
  fsdp::host::discount(p);
  __libc_free(p);
}
void* realloc(void* p, std::size_t bytes) {
  const std::size_t before = p != nullptr ? malloc_usable_size(p) : 0;
  void* q = __libc_realloc(p, bytes);
  if (q == nullptr && bytes != 0) return nullptr;  // p stays as it was
  if (fsdp::host::meter.active) fsdp::host::meter.held -= static_cast<std::int64_t>(before);
  return fsdp::host::count(q);
}
void* memalign(std::size_t alignment, std::size_t bytes) { return fsdp::host::count_aligned(alignment, bytes); }
void* aligned_alloc(std::size_t alignment, std::size_t bytes) { return fsdp::host::count_aligned(alignment, bytes); }
int posix_memalign(void** out, std::size_t alignment, std::size_t bytes) {
  if (alignment % sizeof(void*) != 0 || alignment == 0 || (alignment & (alignment - 1)) != 0) return EINVAL;
  void* p = fsdp::host::count_aligned(alignment, bytes);
  if (p == nullptr) return ENOMEM;
  *out = p;
  return 0;
}

}  // extern "C"
