// A backend whose streams stand still where a test says: before and after kernels and collectives. What is not ordered by waits shows.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "executor/kernel_call.h"

namespace fsdp::testing {

struct Delays {                              // milliseconds; asymmetric on purpose: each rank its own
  int before_all_gather = 0, after_all_gather = 0, before_reduce_scatter = 0, after_reduce_scatter = 0, before_all_reduce = 0;
};

class DelayingDevice final : public Device {
 public:
  DelayingDevice(Device& inner, const Delays& d) : d_(inner), delays_(d) {}
  [[nodiscard]] std::int64_t rank() const override { return d_.rank(); }
  void reserve_arena(std::int64_t bytes, Memory m) override { d_.reserve_arena(bytes, m); }
  BufferView allocate(Stream pool, std::int64_t offset, std::int64_t bytes, Memory m) override { return d_.allocate(pool, offset, bytes, m); }
  void release(Stream pool, BufferView v) override { d_.release(pool, v); }
  [[nodiscard]] std::int64_t allocated_bytes() const override { return d_.allocated_bytes(); }
  void begin_step() override { d_.begin_step(); }
  void launch(std::int32_t op, Stream s, std::span<const std::int32_t> waits, KernelBody body) override { d_.launch(op, s, waits, std::move(body)); }
  void launch_kernel(std::int32_t op, Stream s, std::span<const std::int32_t> waits, KernelCall call) override {
    d_.launch_kernel(op, s, waits, std::move(call));
  }
  void all_gather(std::int32_t op, Stream s, Comm c, std::span<const std::int32_t> waits, BufferView b, const Slots& slots, DType t) override {
    sleep(op, 0, s, delays_.before_all_gather);
    d_.all_gather(op, s, c, waits, b, slots, t);
    sleep(op, 1, s, delays_.after_all_gather);
  }
  void reduce_scatter(std::int32_t op, Stream s, Comm c, std::span<const std::int32_t> waits, BufferView in, BufferView out, const Slots& slots,
                      DType t, Reduction r) override {
    sleep(op, 0, s, delays_.before_reduce_scatter);
    d_.reduce_scatter(op, s, c, waits, in, out, slots, t, r);
    sleep(op, 1, s, delays_.after_reduce_scatter);
  }
  void all_reduce(std::int32_t op, Stream s, Comm c, std::span<const std::int32_t> waits, BufferView b, std::int64_t n, DType t,
                  Reduction r) override {
    sleep(op, 0, s, delays_.before_all_reduce);
    d_.all_reduce(op, s, c, waits, b, n, t, r);
  }
  void broadcast(std::int32_t op, Stream s, Comm c, std::span<const std::int32_t> waits, BufferView b, std::int64_t n, DType t,
                 std::int64_t root) override {
    d_.broadcast(op, s, c, waits, b, n, t, root);
  }
  void wait_host(std::int32_t op) override { d_.wait_host(op); }
  void synchronize() override { d_.synchronize(); }
  [[nodiscard]] std::vector<OperationRecord> records() const override {
    std::vector<OperationRecord> all = d_.records();
    std::erase_if(all, [](const OperationRecord& r) { return r.op >= kOwn; });
    return all;
  }
  void write(BufferView to, std::span<const std::byte> from) override { d_.write(to, from); }
  [[nodiscard]] std::span<const std::byte> bytes_of(BufferView v, std::vector<std::byte>& copy) const override { return d_.bytes_of(v, copy); }
  [[nodiscard]] std::vector<std::string> exchange(const std::string& mine) override { return d_.exchange(mine); }

 private:
  static constexpr std::int32_t kOwn = 1 << 16;
  void sleep(std::int32_t op, int after, Stream s, int ms) {
    if (ms == 0) return;
    const auto time = std::chrono::microseconds(1000 * ms / (1 + (op + rank()) % 3));
    d_.launch(kOwn * (1 + after) + op, s, {}, [time] { std::this_thread::sleep_for(time); });
  }

  Device& d_;
  const Delays delays_;
};

class DelayingBackend final : public Backend {
 public:
  DelayingBackend(std::unique_ptr<Backend> inner, Delays d) : inner_(std::move(inner)), delays_(d) {}
  [[nodiscard]] std::string name() const override { return inner_->name(); }
  [[nodiscard]] std::string environment() const override { return inner_->environment(); }
  [[nodiscard]] const Implementation& implementation() const override { return inner_->implementation(); }
  [[nodiscard]] std::int64_t ranks() const override { return inner_->ranks(); }
  [[nodiscard]] MeshShape mesh() const override { return inner_->mesh(); }
  [[nodiscard]] std::vector<std::int64_t> local_ranks() const override { return inner_->local_ranks(); }
  void run(const std::function<void(Device&)>& body, std::span<const std::int64_t> reshard) override {
    inner_->run([this, &body](Device& device) {
      DelayingDevice delaying(device, delays_);
      body(delaying);
    }, reshard);
  }

 private:
  std::unique_ptr<Backend> inner_;
  const Delays delays_;
};

}  // namespace fsdp::testing
