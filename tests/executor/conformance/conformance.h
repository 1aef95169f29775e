// The conformance suite of Backends: what each must do, written once over the interface. A test program defines
// `subject()` and links the executor_conformance*.cpp files; the cases register themselves with doctest.
//
// Ranks may be threads of this process or processes of their own. So a body speaks for one rank, shares nothing with
// the others but what goes through the Device, and every process checks what its own ranks saw.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "executor/arithmetic/element.h"
#include "executor/backend.h"
#include "models/input/error.h"

namespace fsdp::conformance {

struct Subject {
  std::string name;
  std::int64_t ranks = 0;  // that there are; 0: as many as a mesh asks for
  std::function<std::unique_ptr<Backend>(MeshShape, const BackendOptions&)> make;
};
[[nodiscard]] const Subject& subject();  // defined by the program

inline constexpr Stream D = Stream::compute, G = Stream::all_gather, R = Stream::reduce_scatter, A = Stream::all_reduce;

// `preferred` where the subject can run it, else one shard group of all ranks that there are.
[[nodiscard]] inline MeshShape mesh_like(MeshShape preferred) {
  const std::int64_t there = subject().ranks;
  return there == 0 || preferred.replicate * preferred.shard == there ? preferred : MeshShape{1, there};
}
[[nodiscard]] std::vector<MeshShape> meshes();  // the subject's, of 1 to 8 ranks

// doctest's checks are not for other threads: bodies count, the main thread checks.
class Checks {
 public:
  void expect(bool ok, const char* what = "");
  void finish() const;  // CHECKs

 private:
  std::mutex mutex_;
  std::int64_t seen_ = 0, wrong_ = 0;
  std::string first_wrong_;
};

// Runs the body on every rank; its expectations must hold.
using Body = std::function<void(Device&, Checks&)>;
void on_ranks(MeshShape, const Body&, const std::vector<Comm>& sized = {});

struct Failure {
  std::int64_t rank = -1;
  std::int32_t op = -1;
  std::string what;  // empty: the run did not fail
  [[nodiscard]] bool says(const std::string& words) const { return what.find(words) != std::string::npos; }
};
[[nodiscard]] Failure failure_of(MeshShape, const std::function<void(Device&)>& body, const BackendOptions& = {});

[[nodiscard]] std::vector<std::int64_t> group_of(MeshShape, Comm, std::int64_t rank);  // by definition, in order
[[nodiscard]] std::int64_t member_of(const std::vector<std::int64_t>& group, std::int64_t rank);

// Hands out the arena piece by piece.
class Pieces {
 public:
  explicit Pieces(Device& device, Memory where = Memory::device) : device_(device), where_(where) {}
  [[nodiscard]] BufferView take(Stream pool, std::int64_t bytes);
  void release_all();

 private:
  struct Piece {
    Stream pool;
    BufferView view;
  };
  Device& device_;
  Memory where_;
  std::int64_t used_ = 0;
  std::vector<Piece> out_;
};

inline void put(DType type, std::byte* at, std::int64_t i, double v) {
  with_type(type, [&](auto element) {
    using T = decltype(element);
    store(reinterpret_cast<T*>(at)[i], static_cast<Math<T>>(v));
  });
}
[[nodiscard]] inline double get(DType type, const std::byte* at, std::int64_t i) {
  return with_type(
      type, [&](auto element) { return static_cast<double>(load(reinterpret_cast<const decltype(element)*>(at)[i])); });
}

}  // namespace fsdp::conformance
