#include "executor/host/group.h"

#include <fmt/format.h>

#include <algorithm>

namespace fsdp::host {

const char* name(CollectiveAction a) {
  switch (a) {
    case CollectiveAction::all_gather: return "all_gather";
    case CollectiveAction::reduce_scatter: return "reduce_scatter";
    case CollectiveAction::all_reduce: return "all_reduce";
  }
  return "?";
}

std::int64_t Group::member(std::int64_t rank) const { return std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin(); }

namespace {

std::string describe(const Post& p) {
  const char* reduction =
      p.action == CollectiveAction::all_gather ? "" : (p.reduction == Reduction::average ? ", average" : ", sum");
  return fmt::format("{} of {} {} elements{} (operation {})", name(p.action), p.elements, fsdp::name(p.type), reduction, p.op);
}

bool same_call(const Post& a, const Post& b) {
  return a.action == b.action && a.elements == b.elements && a.type == b.type &&
         (a.action == CollectiveAction::all_gather || a.reduction == b.reduction);
}

}  // namespace

void Group::verify() const {
  for (std::size_t i = 1; i < posts_.size(); ++i)
    if (!same_call(posts_[0], posts_[i]))
      throw RankFailure(ranks_[i], posts_[i].op,
                        fmt::format("ranks disagree about a collective: rank {} issued {}, rank {} issued {}", ranks_[0],
                                    describe(posts_[0]), ranks_[i], describe(posts_[i])));
}

void Group::wait(const RunControl& control, std::unique_lock<std::mutex>& lock, std::int64_t member, bool posting) {
  present_[static_cast<std::size_t>(member)] = 1;
  if (++count_ == posts_.size()) {
    if (posting) verify();
    std::fill(present_.begin(), present_.end(), char{0});
    count_ = 0;
    ++generation_;
    met_.notify_all();
    return;
  }
  const std::uint64_t mine = generation_;
  control.wait_until(met_, lock, [&] { return generation_ != mine; });
}

void Group::meet(const RunControl& control, std::int64_t member, const Post& post) {
  std::unique_lock lock(mutex_);
  posts_[static_cast<std::size_t>(member)] = post;
  wait(control, lock, member, true);
}

void Group::meet(const RunControl& control, std::int64_t member) {
  std::unique_lock lock(mutex_);
  wait(control, lock, member, false);
}

std::vector<std::int64_t> Group::absent() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::int64_t> result;
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    if (present_[i] == 0) result.push_back(ranks_[i]);
  return result;
}

}  // namespace fsdp::host
