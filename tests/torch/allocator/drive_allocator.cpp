// Runs PyTorch's own caching allocator over a sequence of requests and says what it did. Settings come from
// PYTORCH_ALLOC_CONF.
//
// Input, one request a line, after "device BYTES" and optionally "fraction F":
//   m ID BYTES STREAM     malloc          f ID    free          u ID STREAM    record_stream
//   (f and u of a block that was not to be had do nothing)
//   d STREAM              everything issued on STREAM so far has completed          e    empty_cache
// Output, one line per request: the address (from the device's lowest; of an m only, -1 when out of memory, else 0),
// then current allocated, requested, active, reserved and inactive split bytes, segments, and retries so far. Last
// line: "peak" and those of the first five.
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdio>
#include <map>
#include <string>

#include "fake_cuda.h"

namespace c10::cuda::_internal {
void setHasPrimaryContext(
    bool (*)(c10::DeviceIndex));  // in the library, in no header: libtorch_cuda sets it on a real machine
}
namespace allocator = c10::cuda::CUDACachingAllocator;

namespace {

cudaStream_t stream_of(unsigned long s) { return reinterpret_cast<cudaStream_t>(s << 12); }  // 0 is the default stream

void print_stats(const char* first, bool peak) {
  const auto s = allocator::getDeviceStats(0);
  std::printf("%s", first);
  for (const auto* stat :
       {&s.allocated_bytes, &s.requested_bytes, &s.active_bytes, &s.reserved_bytes, &s.inactive_split_bytes})
    std::printf(" %lld", static_cast<long long>(peak ? (*stat)[0].peak : (*stat)[0].current));
  if (!peak)
    std::printf(" %lld %lld", static_cast<long long>(s.segment[0].current),
                static_cast<long long>(s.num_alloc_retries));
  std::printf("\n");
}

}  // namespace

int main() {
  unsigned long bytes = 0;
  if (std::scanf("device %lu\n", &bytes) != 1) return 1;
  fake_device(bytes);
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  allocator::CUDAAllocatorConfig::set_expandable_segments_handle_type(
      allocator::Expandable_Segments_Handle_Type::POSIX_FD);  // asks no NVML
  allocator::init(c10::cuda::device_count_ensure_non_zero());
  std::map<unsigned long, void*> blocks;
  char what[16];
  unsigned long id = 0, stream = 0;
  while (std::scanf("%15s", what) == 1) {
    const std::string word = what;
    long address = 0;
    if (word == "fraction") {
      double fraction = 1;
      if (std::scanf("%lf", &fraction) != 1) return 1;
      allocator::setMemoryFraction(fraction, 0);
      continue;
    }
    if (word == "m") {
      if (std::scanf("%lu %lu %lu", &id, &bytes, &stream) != 3) return 1;
      blocks[id] = nullptr;
      try {
        blocks[id] = allocator::raw_alloc_with_stream(bytes, stream_of(stream));
        address = static_cast<long>(reinterpret_cast<std::size_t>(blocks[id]) - fake_base());
      } catch (const c10::OutOfMemoryError&) {
        address = -1;
      }
    } else if (word == "f") {
      if (std::scanf("%lu", &id) != 1) return 1;
      if (blocks.at(id) != nullptr) allocator::raw_delete(blocks.at(id));
    } else if (word == "u") {
      if (std::scanf("%lu %lu", &id, &stream) != 2) return 1;
      if (blocks.at(id) == nullptr) {
        print_stats("0", false);
        continue;
      }
      // A pointer that knows its owner, as tensors hold it; released, not freed, after the call.
      c10::DataPtr pointer(blocks.at(id), blocks.at(id), allocator::get()->raw_deleter(),
                           c10::Device(c10::DeviceType::CUDA, 0));
      allocator::recordStream(pointer, c10::cuda::getStreamFromExternal(stream_of(stream), 0));
      pointer.release_context();
    } else if (word == "d") {
      if (std::scanf("%lu", &stream) != 1) return 1;
      fake_stream_done(reinterpret_cast<std::size_t>(stream_of(stream)));
    } else if (word == "e") {
      allocator::emptyCache();
    } else {
      return 1;
    }
    print_stats(std::to_string(address).c_str(), false);
  }
  print_stats("peak", true);
}
