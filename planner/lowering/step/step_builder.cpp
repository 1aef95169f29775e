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

std::int32_t StepBuilder::issue(Operation header, std::span<const Arg> args) {
  const auto index = static_cast<std::int32_t>(step_.ops.size());
  header.args = {static_cast<std::uint32_t>(step_.args.size()), static_cast<std::uint32_t>(args.size())};
  step_.args.insert(step_.args.end(), args.begin(), args.end());
  header.allocs = {static_cast<std::uint32_t>(step_.allocs.size()), static_cast<std::uint32_t>(pending_allocs_.size())};
  step_.allocs.insert(step_.allocs.end(), pending_allocs_.begin(), pending_allocs_.end());
  pending_allocs_.clear();
  header.inner = {static_cast<std::uint32_t>(step_.inner.size()), static_cast<std::uint32_t>(pending_inner_.size())};
  step_.inner.insert(step_.inner.end(), pending_inner_.begin(), pending_inner_.end());
  pending_inner_.clear();
  header.waits = {static_cast<std::uint32_t>(step_.waits.size()), 0};
  if (!header.host_only) {
    auto& waits = pending_waits_[static_cast<std::size_t>(header.stream)];
    header.waits.count = static_cast<std::uint32_t>(waits.size());
    step_.waits.insert(step_.waits.end(), waits.begin(), waits.end());
    waits.clear();
    last_[static_cast<std::size_t>(header.stream)] = index;
  }
  header.frees = {static_cast<std::uint32_t>(step_.frees.size()), 0};
  step_.ops.push_back(header);
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
