// Stands in for the .cu files of executor/cuda/toolkit/device/: the same work, in the order of the stream.
#include <cstring>
#include <functional>
#include <thread>

#include "executor/arithmetic/element.h"
#include "executor/cuda/toolkit/device/occupy.h"
#include "executor/cuda/toolkit/device/reduce.h"

void push_on_stream(CUstream_st*, std::function<void()>);

namespace fsdp::cuda {

Combine combine_of(ReductionKind kind) { return static_cast<Combine>(kind); }

void enqueue_reduction(DType type, Reduction reduction, const Inputs& inputs, int n, std::int64_t count,
                       std::byte* output, CUstream_st* stream) {
  push_on_stream(stream, [=] {
    with_type(type, [&](auto element) {
      using T = decltype(element);
      for (std::int64_t i = 0; i < count; ++i)
        reinterpret_cast<T*>(output)[i] =
            reduce_element<T>(combine_of(reduction.kind), reduction.multiply, inputs, n, i);
    });
  });
}

void enqueue_copy(std::byte* to, const std::byte* from, std::int64_t bytes, CUstream_st* stream) {
  push_on_stream(stream, [=] { std::memmove(to, from, static_cast<std::size_t>(bytes)); });
}

void preload_reductions(CUstream_st*) {}

void enqueue_occupation(const Occupation& o, CUstream_st* stream) {
  push_on_stream(stream, [=] { std::this_thread::sleep_for(std::chrono::nanoseconds(o.nanoseconds)); });
}

}  // namespace fsdp::cuda
