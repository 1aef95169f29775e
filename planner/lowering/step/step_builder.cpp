#include "planner/lowering/step/step_builder.h"

#include <utility>

namespace fsdp {

void StepBuilder::wait(Stream stream, std::int32_t op) {
  if (op < 0) return;
  const Stream source = step_.ops[static_cast<std::size_t>(op)].stream;
  if (source == stream) return;  // stream order says it already
  std::int32_t& known = known_[static_cast<std::size_t>(stream)][static_cast<std::size_t>(source)];
  if (op <= known) return;  // implied by an earlier wait
  known = op;
  pending_waits_[static_cast<std::size_t>(stream)].push_back(op);
}

void StepBuilder::wait_stream(Stream stream, Stream source) {
  wait(stream, last(source));
  for (std::int32_t op : pending_waits_[static_cast<std::size_t>(source)]) wait(stream, op);  // of this step
}

namespace {

// Appends what an operation names, mostly nothing or a little.
template <class T>
Slice append(std::vector<T>& all, std::span<const T> some) {
  const Slice slice{static_cast<std::uint32_t>(all.size()), static_cast<std::uint32_t>(some.size())};
  if (!some.empty()) all.insert(all.end(), some.begin(), some.end());
  return slice;
}
Slice move_to(std::vector<std::int32_t>& all, std::vector<std::int32_t>& pending) {
  const Slice slice = append<std::int32_t>(all, pending);
  pending.clear();
  return slice;
}

}  // namespace

std::int32_t StepBuilder::issue(const Operation& header, std::span<const Arg> args) {
  const auto index = static_cast<std::int32_t>(step_.ops.size());
  step_.ops.push_back(header);
  Operation& op = step_.ops.back();
  op.args = append(step_.args, args);
  op.allocs = move_to(step_.allocs, pending_allocs_);
  op.inner = move_to(step_.inner, pending_inner_);
  op.waits = {static_cast<std::uint32_t>(step_.waits.size()), 0};
  if (!op.host_only) {
    op.waits = move_to(step_.waits, pending_waits_[static_cast<std::size_t>(op.stream)]);
    last_[static_cast<std::size_t>(op.stream)] = index;
  }
  op.frees = {static_cast<std::uint32_t>(step_.frees.size()), 0};
  return index;
}

void StepBuilder::host_wait(std::span<const std::int32_t> ops, std::int16_t micro_batch) {
  if (ops.empty()) return;
  Operation wait = operation(Action::host_wait, Stream::compute, -1, micro_batch);
  wait.host_only = true;
  const std::int32_t index = issue(wait, {});
  step_.waits.insert(step_.waits.end(), ops.begin(), ops.end());
  step_.ops[static_cast<std::size_t>(index)].waits.count = static_cast<std::uint32_t>(ops.size());
}

}  // namespace fsdp
