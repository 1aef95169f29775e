#include "executor/ranks/collective_device.h"

#include <fmt/format.h>

#include <utility>

#include "models/input/error.h"

namespace fsdp::host {

std::size_t CollectiveDevice::link_of(Comm wanted, std::int32_t op) const {
  for (std::size_t i = 0; i < links(); ++i)
    if (comm(i) == wanted) return i;
  if (wanted.kind == Communicator::none)
    throw MachineError(fmt::format("operation {} is a collective without a communicator", op));
  throw MachineError(
      fmt::format("operation {} is a collective over groups of {} consecutive ranks, which this run has not asked for",
                  op, wanted.size));
}

void CollectiveDevice::all_gather(std::int32_t op, Stream stream, Comm group, std::span<const std::int32_t> waits,
                                  BufferView buffer, const Slots& slots, DType type) {
  const std::size_t link = link_of(group, op);
  const GroupPlace at = place(link);
  CollectiveCall call{.action = CollectiveAction::all_gather,
                      .op = op,
                      .stream = stream,
                      .input = buffer.data,
                      .output = buffer.data,
                      .type = type};
  const std::int64_t all = set_slots(call, slots, at.members);
  check_fits(call, at.member, at.members, all, buffer.bytes, buffer.bytes);
  issue_collective(link, waits, std::move(call));
}

void CollectiveDevice::reduce_scatter(std::int32_t op, Stream stream, Comm group, std::span<const std::int32_t> waits,
                                      BufferView input, BufferView output, const Slots& slots, DType type,
                                      Reduction reduction) {
  const std::size_t link = link_of(group, op);
  const GroupPlace at = place(link);
  CollectiveCall call{.action = CollectiveAction::reduce_scatter,
                      .op = op,
                      .stream = stream,
                      .input = input.data,
                      .output = output.data,
                      .type = type,
                      .reduction = reduction};
  const std::int64_t all = set_slots(call, slots, at.members);
  check_fits(call, at.member, at.members, all, input.bytes, output.bytes);
  issue_collective(link, waits, std::move(call));
}

void CollectiveDevice::all_reduce(std::int32_t op, Stream stream, Comm group, std::span<const std::int32_t> waits,
                                  BufferView buffer, std::int64_t elements, DType type, Reduction reduction) {
  const std::size_t link = link_of(group, op);
  const GroupPlace at = place(link);
  CollectiveCall call{.action = CollectiveAction::all_reduce,
                      .op = op,
                      .stream = stream,
                      .input = buffer.data,
                      .output = buffer.data,
                      .elements = elements,
                      .type = type,
                      .reduction = reduction};
  check_fits(call, at.member, at.members, elements, buffer.bytes, buffer.bytes);
  issue_collective(link, waits, std::move(call));
}

void CollectiveDevice::broadcast(std::int32_t op, Stream stream, Comm group, std::span<const std::int32_t> waits,
                                 BufferView buffer, std::int64_t elements, DType type, std::int64_t root) {
  const std::size_t link = link_of(group, op);
  const GroupPlace at = place(link);
  if (root < 0 || root >= at.members)
    throw MachineError(fmt::format("operation {}: broadcast from member {} of a group of {}", op, root, at.members));
  CollectiveCall call{.action = CollectiveAction::broadcast,
                      .op = op,
                      .stream = stream,
                      .input = buffer.data,
                      .output = buffer.data,
                      .elements = elements,
                      .type = type,
                      .root = root};
  check_fits(call, at.member, at.members, elements, buffer.bytes, buffer.bytes);
  issue_collective(link, waits, std::move(call));
}

}  // namespace fsdp::host
