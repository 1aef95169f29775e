// kernels.h by the best compilation of the kernels that this processor can run.
#include "executor/kernels/kernels.h"

#include <cstdlib>
#include <string>

#include "executor/kernels/levels/table.h"
#include "models/input/error.h"

namespace fsdp {
namespace {

constexpr const char* kChoice = "FSDP_PLAN_INSTRUCTIONS";

[[noreturn]] void refuse(std::string_view asked, std::span<const KernelTable* const> tables) {
  std::string offered;
  for (const KernelTable* t : tables) offered += (offered.empty() ? "" : ", ") + std::string(t->instructions);
  throw InputError(kChoice, "'" + std::string(asked) + "' is not in this program or not in this processor",
                   "use one of " + offered);
}

// Takes no heap: the first call may be inside a metered kernel.
const KernelTable& choose() {
  const std::span<const KernelTable* const> tables = kernel_tables();
  const char* asked = std::getenv(kChoice);
  if (asked == nullptr || *asked == '\0') return *tables.front();
  for (const KernelTable* t : tables)
    if (std::string_view(asked) == t->instructions) return *t;
  refuse(asked, tables);
}

const KernelTable& table() {
  static const KernelTable& chosen = choose();
  return chosen;
}

}  // namespace

std::string_view kernel_instructions() { return table().instructions; }

void run_forward(const Op& op, const Workload& work, DType type, std::span<const KernelArg> args, double token_weight) {
  table().forward(op, work, type, args, token_weight);
}
void run_backward(const Op& op, const Workload& work, DType type, std::span<const KernelArg> args,
                  double token_weight) {
  table().backward(op, work, type, args, token_weight);
}
void add_into(DType type, BufferView from, BufferView into, std::int64_t elements) {
  table().add_into(type, from, into, elements);
}
void convert(DType from_type, BufferView from, DType to_type, BufferView to, std::int64_t elements, bool accumulate) {
  table().convert(from_type, from, to_type, to, elements, accumulate);
}
void scatter_copy_in(const UnitLayout& layout, DType from, std::span<const BufferView> full, DType to,
                     BufferView input) {
  table().scatter_copy_in(layout, from, full, to, input);
}
void gather_copy_out(const UnitLayout& layout, DType type, BufferView gathered, std::span<const BufferView> full) {
  table().gather_copy_out(layout, type, gathered, full);
}
void adamw(const UnitLayout& layout, std::int64_t shard_rank, const Optimizer& optimizer, std::int64_t step,
           DType master, BufferView gradient, BufferView shard, BufferView state1, BufferView state2,
           GradientPlaces places) {
  table().adamw(layout, shard_rank, optimizer, step, master, gradient, shard, state1, state2, places);
}
void sgd(const UnitLayout& layout, std::int64_t shard_rank, const Optimizer& optimizer, DType master,
         BufferView gradient, BufferView shard, BufferView state1, GradientPlaces places) {
  table().sgd(layout, shard_rank, optimizer, master, gradient, shard, state1, places);
}
double sum_of_squares(DType type, BufferView values, std::int64_t elements) {
  return table().sum_of_squares(type, values, elements);
}
void scale(DType type, BufferView values, std::int64_t elements, double factor) {
  table().scale(type, values, elements, factor);
}
void host_matmul(DType type, Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, const void* a,
                 const void* b, void* c, bool accumulate, BufferView scratch) {
  table().host_matmul(type, ta, tb, m, n, k, a, b, c, accumulate, scratch);
}

}  // namespace fsdp
