// Ranks that are processes of their own: what each has measured comes to all of them.
#include <bit>
#include <cstring>
#include <string>
#include <type_traits>

#include "executor/training/rank_run.h"
#include "models/input/error.h"

namespace fsdp {
namespace {

// Between processes of one program on machines of one kind: plain bytes. Both sides name the fields in one place,
// `all_of`.
class Packer {
 public:
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void operator()(const T& x) { text_.append(reinterpret_cast<const char*>(&x), sizeof(T)); }
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void operator()(const std::vector<T>& x) {
    (*this)(x.size());
    if (!x.empty()) text_.append(reinterpret_cast<const char*>(x.data()), x.size() * sizeof(T));
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

class Unpacker {
 public:
  explicit Unpacker(const std::string& text) : text_(text) {}
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void operator()(T& x) { read(&x, sizeof(T), 1); }
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void operator()(std::vector<T>& x) {
    std::size_t n = 0;
    (*this)(n);
    if (n > text_.size() / sizeof(T)) throw MachineError("a rank's results came damaged");
    x.resize(n);
    read(x.data(), sizeof(T), n);
  }

 private:
  void read(void* to, std::size_t each, std::size_t n) {
    if (each * n > text_.size() - at_) throw MachineError("a rank's results came damaged");
    if (n > 0) std::memcpy(to, text_.data() + at_, each * n);
    at_ += each * n;
  }
  const std::string& text_;
  std::size_t at_ = 0;
};

template <class Io, class Record>
void all_of_step(Io& io, Record& s) {
  io(s.operations);
  io(s.memory.start);
  io(s.memory.points);
  io(s.end);
  io(s.seconds);
  io(s.loss);
}

template <class Io, class Job>
void all_of(Io& io, Job& rank) {
  all_of_step(io, rank.init);
  all_of_step(io, rank.first);
  StepLog::all_of(io, rank.steady, [](Io& to, auto& record) { all_of_step(to, record); });
  io(rank.undeclared_bytes);
  io(rank.arena_resident_bytes);
  io(rank.process_seconds);
}

// Every element was filled by one rank and is zero bits on all others.
void merge(std::vector<NamedTensor>& into, const std::vector<std::vector<double>>& values) {
  for (std::size_t t = 0; t < into.size(); ++t)
    for (std::size_t i = 0; i < into[t].values.size(); ++i)
      into[t].values[i] = std::bit_cast<double>(std::bit_cast<std::uint64_t>(into[t].values[i]) |
                                                std::bit_cast<std::uint64_t>(values.at(t).at(i)));
}

}  // namespace

void gather_from_processes(RunJob& job, Backend& backend) {
  const std::int64_t mine = backend.local_ranks().front();
  Packer packer;
  all_of(packer, job.ranks[static_cast<std::size_t>(mine)]);
  for (const auto* tensors : {&job.parameters, &job.first_gradients})
    for (const NamedTensor& t : *tensors) packer(t.values);
  const std::string text = packer.take();
  std::vector<std::string> all;
  backend.run([&](Device& device) { all = device.exchange(text); });
  for (std::int64_t r = 0; r < backend.ranks(); ++r) {
    if (r == mine) continue;
    Unpacker unpacker(all.at(static_cast<std::size_t>(r)));
    all_of(unpacker, job.ranks[static_cast<std::size_t>(r)]);
    for (auto* tensors : {&job.parameters, &job.first_gradients}) {
      std::vector<std::vector<double>> values(tensors->size());
      for (auto& v : values) unpacker(v);
      merge(*tensors, values);
    }
  }
}

}  // namespace fsdp
