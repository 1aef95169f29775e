// A backend that hands everything on to another: what a test's own backend begins with, to change only what it is
// about.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "executor/actions/kernel_call.h"

namespace fsdp::testing {

class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(Device& inner) : d_(inner) {}
  [[nodiscard]] std::int64_t rank() const override { return d_.rank(); }
  void reserve_arena(std::int64_t bytes, Memory m) override { d_.reserve_arena(bytes, m); }
  BufferView allocate(Stream pool, std::int64_t offset, std::int64_t bytes, Memory m) override {
    return d_.allocate(pool, offset, bytes, m);
  }
  void release(Stream pool, BufferView v) override { d_.release(pool, v); }
  [[nodiscard]] std::int64_t allocated_bytes() const override { return d_.allocated_bytes(); }
  void begin_step() override { d_.begin_step(); }
  void launch(std::int32_t op, Stream s, std::span<const std::int32_t> waits, KernelBody body) override {
    d_.launch(op, s, waits, std::move(body));
  }
  void launch_kernel(std::int32_t op, Stream s, std::span<const std::int32_t> waits, KernelCall call) override {
    d_.launch_kernel(op, s, waits, std::move(call));
  }
  void all_gather(std::int32_t op, Stream s, Comm c, std::span<const std::int32_t> waits, BufferView b,
                  const Slots& slots, DType t, BufferView own) override {
    d_.all_gather(op, s, c, waits, b, slots, t, own);
  }
  void reduce_scatter(std::int32_t op, Stream s, Comm c, std::span<const std::int32_t> waits, BufferView in,
                      BufferView out, const Slots& slots, DType t, Reduction r) override {
    d_.reduce_scatter(op, s, c, waits, in, out, slots, t, r);
  }
  void all_reduce(std::int32_t op, Stream s, Comm c, std::span<const std::int32_t> waits, BufferView b, std::int64_t n,
                  DType t, Reduction r, BufferView own) override {
    d_.all_reduce(op, s, c, waits, b, n, t, r, own);
  }
  void broadcast(std::int32_t op, Stream s, Comm c, std::span<const std::int32_t> waits, BufferView b, std::int64_t n,
                 DType t, std::int64_t root) override {
    d_.broadcast(op, s, c, waits, b, n, t, root);
  }
  void wait_host(std::int32_t op) override { d_.wait_host(op); }
  [[nodiscard]] bool finished(std::int32_t op) override { return d_.finished(op); }
  void synchronize() override { d_.synchronize(); }
  [[nodiscard]] std::vector<OperationRecord> records() const override { return d_.records(); }
  void write(BufferView to, std::span<const std::byte> from) override { d_.write(to, from); }
  [[nodiscard]] std::span<const std::byte> bytes_of(BufferView v, std::vector<std::byte>& copy) const override {
    return d_.bytes_of(v, copy);
  }
  [[nodiscard]] std::vector<std::string> exchange(const std::string& mine) override { return d_.exchange(mine); }

 protected:
  Device& d_;
};

// Every rank's device goes through `around`, which calls what it is given with the device that the body shall see.
class ForwardingBackend : public Backend {
 public:
  using Body = std::function<void(Device&)>;
  ForwardingBackend(std::unique_ptr<Backend> inner, std::function<void(Device&, const Body&)> around)
      : inner_(std::move(inner)), around_(std::move(around)) {}
  [[nodiscard]] std::string name() const override { return inner_->name(); }
  [[nodiscard]] std::string environment() const override { return inner_->environment(); }
  [[nodiscard]] const Implementation& implementation() const override { return inner_->implementation(); }
  [[nodiscard]] std::int64_t ranks() const override { return inner_->ranks(); }
  [[nodiscard]] MeshShape mesh() const override { return inner_->mesh(); }
  [[nodiscard]] std::vector<std::int64_t> local_ranks() const override { return inner_->local_ranks(); }
  void run(const Body& body, std::span<const Comm> sized) override {
    inner_->run([this, &body](Device& device) { around_(device, body); }, sized);
  }

 private:
  std::unique_ptr<Backend> inner_;
  std::function<void(Device&, const Body&)> around_;
};

}  // namespace fsdp::testing
