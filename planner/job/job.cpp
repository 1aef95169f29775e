#include "planner/job.h"

#include <utility>

#include <fmt/format.h>

#include "models/input/error.h"
#include "models/topology.h"
#include "planner/lower.h"
#include "planner/tensor/local_model.h"

namespace fsdp {

namespace {

// PyTorch's symmetric memory is read over NVLink.
void check_async_tensor(const ShardingPlan& plan, const Implementation& implementation, const ClusterSpec& cluster) {
  if (!implementation.async_tensor || plan.tensor() == 1) return;
  if (cluster.host || !has_symmetric_memory(cluster))
    throw InputError(setting("async_tensor"),
                     fmt::format("needs ranks that read each other over NVLink, which {} has not", cluster.name),
                     "leave it out");
  if (cluster.domain() % plan.tensor() != 0)
    throw InputError(
        setting("async_tensor"),
        fmt::format("{} tensor ranks are not in one NVLink domain of {} GPUs", plan.tensor(), cluster.domain()),
        "leave it out, or use a tensor size that divides the domain");
}

}  // namespace

Job resolve(ModelGraph model, ShardingPlan plan, const Implementation& implementation, ClusterSpec cluster) {
  if (differs_from_local(model, plan, implementation)) model = local_model(model, plan, implementation);
  check_async_tensor(plan, implementation, cluster);
  PlanIds ids = resolve_ids(plan, model);
  return {std::move(model), std::move(plan), std::move(ids), implementation, std::move(cluster)};
}

Program first_program(const ModelGraph& local, const ShardingPlan& plan, const Implementation& implementation,
                      const ClusterSpec& cluster) {
  check_async_tensor(plan, implementation, cluster);
  return lower(local, plan, implementation, /*rank=*/0);
}

Programs::Programs(Job job) : job_(std::move(job)) {}

Programs::Role Programs::role_of(const std::vector<UnitLayout>& layouts, std::int64_t rank) const {
  const std::int64_t shard_rank = job_.plan.shard_index(rank);
  Role role;
  for (const UnitLayout& layout : layouts) role.push_back(layout.local_elements(layout.shard_index(job_.plan, rank)));
  for (const Unit& unit : job_.plan.units)
    if (unit.reshard_after_forward.ranks > 1) role.push_back(shard_rank % unit.reshard_after_forward.ranks);
  return role;
}

const Program& Programs::of(std::int64_t rank) {
  if (!by_role_.empty()) {  // layouts are those of every rank
    const auto known = by_role_.find(role_of(by_role_.begin()->second.layouts, rank));
    if (known != by_role_.end()) return known->second;
  }
  ++lowerings_;
  Program program = lower(job_.model, job_.plan, job_.ids, job_.implementation, rank);
  Role role = role_of(program.layouts, rank);
  return by_role_.emplace(std::move(role), std::move(program)).first->second;
}

}  // namespace fsdp
