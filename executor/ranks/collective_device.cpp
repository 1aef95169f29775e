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

void CollectiveDevice::start(Comm group, std::span<const std::int32_t> waits, CollectiveCall call, const Slots* slots,
                             std::int64_t input_bytes, std::int64_t output_bytes) {
  const std::size_t link = link_of(group, call.op);
  const GroupPlace at = place(link);
  if (call.root < 0 || call.root >= at.members)
    throw MachineError(
        fmt::format("operation {}: broadcast from member {} of a group of {}", call.op, call.root, at.members));
  const std::int64_t elements = slots != nullptr ? set_slots(call, *slots, at.members) : call.elements;
  check_fits(call, at.member, at.members, elements, input_bytes, output_bytes);
  issue_collective(link, waits, std::move(call));
}

void CollectiveDevice::all_gather(std::int32_t op, Stream stream, Comm group, std::span<const std::int32_t> waits,
                                  BufferView buffer, const Slots& slots, DType type, BufferView own) {
  start(group, waits,
        {.action = CollectiveAction::all_gather,
         .op = op,
         .stream = stream,
         .input = buffer.data,
         .output = buffer.data,
         .type = type,
         .own = own.data},
        &slots, buffer.bytes, own.data == nullptr ? buffer.bytes : own.bytes);
}

void CollectiveDevice::reduce_scatter(std::int32_t op, Stream stream, Comm group, std::span<const std::int32_t> waits,
                                      BufferView input, BufferView output, const Slots& slots, DType type,
                                      Reduction reduction) {
  start(group, waits,
        {.action = CollectiveAction::reduce_scatter,
         .op = op,
         .stream = stream,
         .input = input.data,
         .output = output.data,
         .type = type,
         .reduction = reduction},
        &slots, input.bytes, output.bytes);
}

void CollectiveDevice::all_reduce(std::int32_t op, Stream stream, Comm group, std::span<const std::int32_t> waits,
                                  BufferView buffer, std::int64_t elements, DType type, Reduction reduction,
                                  BufferView own) {
  start(group, waits,
        {.action = CollectiveAction::all_reduce,
         .op = op,
         .stream = stream,
         .input = buffer.data,
         .output = buffer.data,
         .elements = elements,
         .type = type,
         .reduction = reduction,
         .own = own.data},
        nullptr, buffer.bytes, own.data == nullptr ? buffer.bytes : own.bytes);
}

void CollectiveDevice::broadcast(std::int32_t op, Stream stream, Comm group, std::span<const std::int32_t> waits,
                                 BufferView buffer, std::int64_t elements, DType type, std::int64_t root) {
  start(group, waits,
        {.action = CollectiveAction::broadcast,
         .op = op,
         .stream = stream,
         .input = buffer.data,
         .output = buffer.data,
         .elements = elements,
         .type = type,
         .root = root},
        nullptr, buffer.bytes, buffer.bytes);
}

}  // namespace fsdp::host
