// A backend whose streams stand still where a test says: before and after kernels and collectives. What is not ordered
// by waits shows.
#pragma once

#include <chrono>
#include <thread>

#include "tests/support/forwarding_backend.h"

namespace fsdp::testing {

struct Delays {  // milliseconds; asymmetric on purpose: each rank its own
  int before_all_gather = 0, after_all_gather = 0, before_reduce_scatter = 0, after_reduce_scatter = 0,
      before_all_reduce = 0;
};

class DelayingDevice final : public ForwardingDevice {
 public:
  DelayingDevice(Device& inner, const Delays& d) : ForwardingDevice(inner), delays_(d) {}
  void all_gather(std::int32_t op, Stream s, Comm c, std::span<const std::int32_t> waits, BufferView b,
                  const Slots& slots, DType t, BufferView own) override {
    sleep(op, 0, s, delays_.before_all_gather);
    d_.all_gather(op, s, c, waits, b, slots, t, own);
    sleep(op, 1, s, delays_.after_all_gather);
  }
  void reduce_scatter(std::int32_t op, Stream s, Comm c, std::span<const std::int32_t> waits, BufferView in,
                      BufferView out, const Slots& slots, DType t, Reduction r) override {
    sleep(op, 0, s, delays_.before_reduce_scatter);
    d_.reduce_scatter(op, s, c, waits, in, out, slots, t, r);
    sleep(op, 1, s, delays_.after_reduce_scatter);
  }
  void all_reduce(std::int32_t op, Stream s, Comm c, std::span<const std::int32_t> waits, BufferView b, std::int64_t n,
                  DType t, Reduction r, BufferView own) override {
    sleep(op, 0, s, delays_.before_all_reduce);
    d_.all_reduce(op, s, c, waits, b, n, t, r, own);
  }
  [[nodiscard]] std::vector<OperationRecord> records() const override {
    std::vector<OperationRecord> all = d_.records();
    std::erase_if(all, [](const OperationRecord& r) { return r.op >= kOwn; });
    return all;
  }

 private:
  static constexpr std::int32_t kOwn = 1 << 16;
  void sleep(std::int32_t op, int after, Stream s, int ms) {
    if (ms == 0) return;
    const auto time = std::chrono::microseconds(1000 * ms / (1 + (op + rank()) % 3));
    d_.launch(kOwn * (1 + after) + op, s, {}, [time] { std::this_thread::sleep_for(time); });
  }

  const Delays delays_;
};

class DelayingBackend final : public ForwardingBackend {
 public:
  DelayingBackend(std::unique_ptr<Backend> inner, Delays d)
      : ForwardingBackend(std::move(inner), [d](Device& device, const Body& body) {
          DelayingDevice delaying(device, d);
          body(delaying);
        }) {}
};

}  // namespace fsdp::testing
