#include "tests/executor/conformance/conformance.h"

#include <algorithm>

namespace fsdp::conformance {

std::vector<MeshShape> meshes() {
  std::vector<MeshShape> result;
  for (const MeshShape m :
       {MeshShape{1, 1}, {1, 2}, {2, 1}, {1, 3}, {3, 1}, {2, 2}, {1, 4}, {4, 1}, {2, 3}, {2, 4}, {4, 2}, {1, 8}})
    if (subject().ranks == 0 || m.replicate * m.shard == subject().ranks) result.push_back(m);
  if (result.empty()) result.push_back(mesh_like({1, 1}));
  return result;
}

void Checks::expect(bool ok, const char* what) {
  const std::lock_guard lock(mutex_);
  ++seen_;
  if (!ok && wrong_++ == 0) first_wrong_ = what;
}

void Checks::finish() const {
  CHECK_MESSAGE(wrong_ == 0, first_wrong_);
  CHECK(seen_ > 0);
}

void on_ranks(MeshShape mesh, const Body& body, const std::vector<Comm>& sized) {
  CAPTURE(subject().name);
  CAPTURE(mesh.replicate);
  CAPTURE(mesh.shard);
  Checks checks;
  const auto backend = subject().make(mesh, {});
  CHECK(backend->ranks() == mesh.replicate * mesh.shard);
  backend->run([&](Device& device) { body(device, checks); }, sized);
  checks.finish();
}

Failure failure_of(MeshShape mesh, const std::function<void(Device&)>& body, const BackendOptions& options) {
  const auto backend = subject().make(mesh, options);
  try {
    backend->run(body);
  } catch (const RankFailure& e) {
    return {e.rank(), e.op(), e.what()};
  }
  return {};
}

std::vector<std::int64_t> group_of(MeshShape mesh, Comm comm, std::int64_t rank) {
  const auto in = [&](std::int64_t r) {
    switch (comm.kind) {
      case Communicator::world: return true;
      case Communicator::shard:
      case Communicator::shard_reduce:
        return r / (mesh.shard * mesh.tensor) == rank / (mesh.shard * mesh.tensor) &&
               r % mesh.tensor == rank % mesh.tensor;
      case Communicator::replicate: return r % (mesh.shard * mesh.tensor) == rank % (mesh.shard * mesh.tensor);
      case Communicator::reshard:
      case Communicator::own_shard: return r / comm.size == rank / comm.size;
      case Communicator::own_replicate: return r % (mesh.ranks() / comm.size) == rank % (mesh.ranks() / comm.size);
      case Communicator::tensor: return r / mesh.tensor == rank / mesh.tensor;
      case Communicator::none: break;
    }
    return false;
  };
  std::vector<std::int64_t> group;
  for (std::int64_t r = 0; r < mesh.ranks(); ++r)
    if (in(r)) group.push_back(r);
  return group;
}

std::int64_t member_of(const std::vector<std::int64_t>& group, std::int64_t rank) {
  return std::find(group.begin(), group.end(), rank) - group.begin();
}

BufferView Pieces::take(Stream pool, std::int64_t bytes) {
  const BufferView view = device_.allocate(pool, used_, bytes, where_);
  used_ += (bytes + 63) / 64 * 64 + 64;
  out_.push_back({pool, view});
  return view;
}

void Pieces::release_all() {
  for (const Piece& p : out_) device_.release(p.pool, p.view);
  out_.clear();
  used_ = 0;
}

}  // namespace fsdp::conformance
