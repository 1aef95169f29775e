#include "executor/ranks/group.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/input/error.h"
#include "models/units.h"

namespace fsdp::host {

const char* name(CollectiveAction a) {
  switch (a) {
    case CollectiveAction::all_gather: return "all_gather";
    case CollectiveAction::reduce_scatter: return "reduce_scatter";
    case CollectiveAction::all_reduce: return "all_reduce";
    case CollectiveAction::broadcast: return "broadcast";
  }
  return "?";
}

std::vector<Membership> memberships(MeshShape mesh, std::span<const Comm> sized, std::int64_t rank) {
  std::vector<Membership> result;
  const auto add = [&](Comm comm, std::int64_t size, std::int64_t stride) {
    Membership m{comm, {}};
    const std::int64_t first = rank - rank / stride % size * stride;
    for (std::int64_t i = 0; i < size; ++i) m.ranks.push_back(first + i * stride);
    result.push_back(std::move(m));
  };
  add(Communicator::shard, mesh.shard, mesh.tensor);
  add(Communicator::replicate, mesh.replicate, mesh.shard * mesh.tensor);
  add(Communicator::world, mesh.ranks(), 1);
  add(Communicator::shard_reduce, mesh.shard, mesh.tensor);
  add(Communicator::tensor, mesh.tensor, 1);
  for (const Comm comm : sized) {
    const std::int64_t n = comm.size, data_ranks = mesh.replicate * mesh.shard;
    const bool reshard = comm.kind == Communicator::reshard;
    if (n < 1 || (reshard ? mesh.shard : data_ranks) % n != 0)
      throw InputError(reshard ? "reshard_after_forward" : "shard",
                       reshard ? fmt::format("groups of {} ranks do not divide {} shards", n, mesh.shard)
                               : fmt::format("groups of {} ranks do not divide {} ranks", n, data_ranks));
    add(comm, n, comm.kind == Communicator::own_replicate ? data_ranks / n * mesh.tensor : mesh.tensor);
  }
  return result;
}

bool ranks_within(MeshShape mesh, std::int64_t most) {
  return mesh.replicate >= 1 && mesh.shard >= 1 && mesh.tensor >= 1 &&
         checked_mul(checked_mul(mesh.replicate, mesh.shard, "mesh"), mesh.tensor, "mesh") <= most;
}

std::string mesh_text(MeshShape mesh) {
  const std::string text = fmt::format("{} x {}", mesh.replicate, mesh.shard);
  return mesh.tensor == 1 ? text : fmt::format("{} x {}", text, mesh.tensor);
}

std::int64_t CollectiveCall::slot_begin(std::int64_t member) const {
  if (!counts) return member * elements;
  std::int64_t begin = 0;
  for (std::int64_t m = 0; m < member; ++m) begin += (*counts)[static_cast<std::size_t>(m)];
  return begin;
}

std::int64_t set_slots(CollectiveCall& call, const Slots& slots, std::int64_t members) {
  const char* what = name(call.action);
  call.elements = slots.each;
  if (slots.counts.empty()) return checked_mul(slots.each, members, what);
  if (static_cast<std::int64_t>(slots.counts.size()) != members)
    throw MachineError(
        fmt::format("operation {}: {} with {} slots over {} ranks", call.op, what, slots.counts.size(), members));
  std::int64_t all = 0;
  for (const std::int64_t n : slots.counts) {
    if (n < 0) throw MachineError(fmt::format("operation {}: {} with a slot of {} elements", call.op, what, n));
    all = checked_add(all, n, what);
  }
  call.counts = std::make_shared<const std::vector<std::int64_t>>(slots.counts);
  return all;
}

void check_fits(const CollectiveCall& call, std::int64_t member, std::int64_t members, std::int64_t group_elements,
                std::int64_t large_bytes, std::int64_t small_bytes) {
  const std::int64_t width = size_of(call.type), own = call.counts ? call.slot(member) : call.elements;
  if (own < 0 || group_elements < 0 || group_elements > large_bytes / width || own > small_bytes / width)
    throw MachineError(
        fmt::format("operation {}: {} of {} {} elements over {} ranks does not fit its buffers of {} and {} bytes",
                    call.op, name(call.action), own, fsdp::name(call.type), members, large_bytes, small_bytes));
  if (call.type == DType::i64 &&
      (call.action == CollectiveAction::reduce_scatter || call.action == CollectiveAction::all_reduce))
    throw MachineError(fmt::format("operation {}: this backend does not reduce {}", call.op, fsdp::name(call.type)));
}

std::int64_t ThreadGroup::member(std::int64_t rank) const {
  return std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin();
}

namespace {

bool reduces(const CollectiveCall& p) {
  return p.action == CollectiveAction::reduce_scatter || p.action == CollectiveAction::all_reduce;
}

std::string manner(const CollectiveCall& p) {
  if (p.action == CollectiveAction::broadcast) return fmt::format(" from member {}", p.root);
  if (!reduces(p)) return "";
  switch (p.reduction.kind) {
    case ReductionKind::sum: return ", sum";
    case ReductionKind::average: return ", average";
    case ReductionKind::scaled_sum: return fmt::format(", sum of each by {}", p.reduction.multiply);
    case ReductionKind::maximum: return ", maximum";
  }
  return "";
}

std::string describe(const CollectiveCall& p) {
  const std::string elements = p.counts ? fmt::format("{}", fmt::join(*p.counts, ", ")) : fmt::format("{}", p.elements);
  return fmt::format("{} of {} {} elements{} (operation {})", name(p.action), elements, fsdp::name(p.type), manner(p),
                     p.op);
}

bool same_reduction(const Reduction& a, const Reduction& b) {
  return a.kind == b.kind && (a.kind != ReductionKind::scaled_sum || a.multiply == b.multiply);
}

bool same_call(const CollectiveCall& a, const CollectiveCall& b) {
  const bool same_slots =
      a.counts && b.counts ? *a.counts == *b.counts : !a.counts && !b.counts && a.elements == b.elements;
  return a.action == b.action && same_slots && a.type == b.type && a.root == b.root &&
         (!reduces(a) || same_reduction(a.reduction, b.reduction));
}

}  // namespace

void check_same_call(std::span<const std::int64_t> ranks, std::span<const CollectiveCall> calls) {
  for (std::size_t i = 1; i < calls.size(); ++i)
    if (!same_call(calls[0], calls[i]))
      throw RankFailure(ranks[i], calls[i].op,
                        fmt::format("ranks disagree about a collective: rank {} issued {}, rank {} issued {}", ranks[0],
                                    describe(calls[0]), ranks[i], describe(calls[i])));
}

void ThreadGroup::wait(const RunControl& control, std::unique_lock<std::mutex>& lock, std::int64_t member,
                       bool calling) {
  present_[static_cast<std::size_t>(member)] = 1;
  if (++count_ == calls_.size()) {
    if (calling) check_same_call(ranks_, calls_);
    std::fill(present_.begin(), present_.end(), char{0});
    count_ = 0;
    ++generation_;
    met_.notify_all();
    return;
  }
  const std::uint64_t mine = generation_;
  control.wait_until(met_, lock, [&] { return generation_ != mine; });
}

void ThreadGroup::meet(const RunControl& control, std::int64_t member, const CollectiveCall& call) {
  std::unique_lock lock(mutex_);
  calls_[static_cast<std::size_t>(member)] = call;
  wait(control, lock, member, true);
}

void ThreadGroup::meet(const RunControl& control, std::int64_t member) {
  std::unique_lock lock(mutex_);
  wait(control, lock, member, false);
}

std::vector<std::int64_t> ThreadGroup::absent() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::int64_t> result;
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    if (present_[i] == 0) result.push_back(ranks_[i]);
  return result;
}

}  // namespace fsdp::host
