// The collectives of a Device, put together and checked in one place: which group of the rank is meant, who the root
// is, whether the buffers fit. A backend says which groups the rank belongs to and puts the checked call on a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "executor/ranks/group.h"

namespace fsdp::host {

// A rank's place in one of its groups: member `member` of `members`.
struct GroupPlace {
  std::int64_t member = 0, members = 0;
};

class CollectiveDevice : public Device {
 public:
  // Throw MachineError for a communicator that the rank has no group for, slots that do not add up, a root outside the
  // group, and buffers that are too small.
  void all_gather(std::int32_t op, Stream, Comm, std::span<const std::int32_t> waits, BufferView buffer, const Slots&,
                  DType, BufferView own) final;
  void reduce_scatter(std::int32_t op, Stream, Comm, std::span<const std::int32_t> waits, BufferView input,
                      BufferView output, const Slots&, DType, Reduction) final;
  void all_reduce(std::int32_t op, Stream, Comm, std::span<const std::int32_t> waits, BufferView buffer,
                  std::int64_t elements, DType, Reduction, BufferView own) final;
  void broadcast(std::int32_t op, Stream, Comm, std::span<const std::int32_t> waits, BufferView buffer,
                 std::int64_t elements, DType, std::int64_t root) final;

 private:
  // The groups that this rank belongs to: links 0 to links() - 1.
  [[nodiscard]] virtual std::size_t links() const = 0;
  [[nodiscard]] virtual Comm comm(std::size_t link) const = 0;
  [[nodiscard]] virtual GroupPlace place(std::size_t link) const = 0;
  // Puts a checked call on its stream. One communicator runs one collective at a time, in issue order, whatever the
  // stream.
  virtual void issue_collective(std::size_t link, std::span<const std::int32_t> waits, CollectiveCall) = 0;

  [[nodiscard]] std::size_t link_of(Comm, std::int32_t op) const;
  // Checks the call and issues it. `slots`: of a gather or a scatter, else null.
  void start(Comm, std::span<const std::int32_t> waits, CollectiveCall, const Slots* slots, std::int64_t input_bytes,
             std::int64_t output_bytes);
};

}  // namespace fsdp::host
