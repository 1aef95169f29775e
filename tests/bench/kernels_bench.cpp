// Host matmuls as an executed plan makes them (a linear op's forward and backward: checks, layout changes, bias
// and, for bf16, conversions included) beside the same three matmuls by the library alone, in turns within one run;
// and attention's rate. `ratio` = library seconds / our seconds: 0.8 or more is the goal for fp32. And every other
// kernel of a block of about 7 million parameters at 512 tokens, by processor time; FSDP_PLAN_INSTRUCTIONS=baseline (or
// x86-64-v3) shows what wider vectors gain.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "executor/kernels/host_kernel_set.h"
#include "executor/kernels/matmul/matmul.h"
#include "models/catalog.h"
#include "models/implementation.h"
#include "planner/layout.h"

namespace {

using namespace fsdp;

// Memory that has been touched, so that page faults are not timed.
struct Room {
  std::vector<std::byte> bytes;
  explicit Room(std::int64_t n) : bytes(static_cast<std::size_t>(n)) {}
  BufferView view() { return {bytes.empty() ? nullptr : bytes.data(), static_cast<std::int64_t>(bytes.size())}; }
  float* floats() { return reinterpret_cast<float*>(bytes.data()); }
};

// Processor time of this thread: kernels run on one, and neighbours on a busy machine do not count.
double now() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <class F>
double seconds(const F& f) {
  const double begin = now();
  f();
  return now() - begin;
}

// One op with all its buffers.
struct OpBench {
  const Op& op;
  Workload work;
  DType type;
  std::vector<Room> rooms;
  std::vector<KernelArg> forward_args, backward_args;

  std::int64_t bytes_of(const ModelGraph& m, std::int32_t tensor) const {
    const Tensor& t = m.tensors[static_cast<std::size_t>(tensor)];
    const DType stored = t.kind == TensorKind::ids ? DType::i64 : t.kind == TensorKind::loss ? DType::f64 : type;
    return t.kind == TensorKind::loss ? size_of(stored) : elements(t, work) * size_of(stored);
  }
  KernelArg room(std::int64_t bytes) { return {rooms.emplace_back(bytes).view()}; }

  OpBench(const ModelGraph& m, const Op& o, std::int64_t tokens, DType t)
      : op(o), work{1, tokens, size_of(t)}, type(t) {
    const OpFacts f = facts(native_implementation(), o, work);
    std::vector<KernelArg> inputs, params, outputs, grad_outputs, grad_inputs, grad_params;
    for (const auto i : o.inputs) inputs.push_back(room(bytes_of(m, i))), grad_inputs.push_back(room(bytes_of(m, i)));
    for (const auto p : o.params) {
      const std::int64_t bytes = m.parameters[static_cast<std::size_t>(p)].numel() * work.element_bytes;
      params.push_back(room(bytes)), grad_params.push_back(room(bytes));
    }
    for (const auto i : o.outputs)
      outputs.push_back(room(bytes_of(m, i))), grad_outputs.push_back(room(bytes_of(m, i)));
    const KernelArg extra = room(f.saved_extra_bytes);
    const auto append = [](std::vector<KernelArg>& to, const std::vector<KernelArg>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    for (const auto& part : {inputs, params, outputs, {extra, room(f.forward_scratch_bytes)}})
      append(forward_args, part);
    for (const auto& part :
         {grad_outputs, inputs, outputs, params, {extra, room(f.backward_scratch_bytes)}, grad_inputs, grad_params})
      append(backward_args, part);
    host_kernel_set().forward(op, work, type, forward_args, 1);  // warms up, and fills what backward reads
    if (op.kind != OpKind::add) host_kernel_set().backward(op, work, type, backward_args, 1);  // a sum has none
  }
  double forward() {
    return seconds([&] { host_kernel_set().forward(op, work, type, forward_args, 1); });
  }
  double backward() {
    return seconds([&] { host_kernel_set().backward(op, work, type, backward_args, 1); });
  }
};

const Op& find_op(const ModelGraph& m, OpKind kind, const std::string& module) {
  for (const Op& op : m.ops)
    if (op.kind == kind && op.module >= 0 && m.modules[static_cast<std::size_t>(op.module)].name == module) return op;
  throw std::runtime_error("no op of " + module);
}

// y = x W^T, dx = dy W, dW = dy^T x by the library alone, in fp32.
struct Library {
  std::int64_t t, in, out;
  Room x, w, y;
  Library(std::int64_t tokens, const OpShape& s)
      : t(tokens), in(s.in), out(s.out), x(4 * t * in), w(4 * in * out), y(4 * t * out) {}
  double run() {
    const auto plain = [](Room& r, std::int64_t stride) { return Operand<float>{r.floats(), stride, Transpose::no}; };
    const auto turned = [](Room& r, std::int64_t stride) { return Operand<float>{r.floats(), stride, Transpose::yes}; };
    return seconds([&] {
      matmul(t, out, in, 1.0f, plain(x, in), turned(w, in), 0.0f, y.floats(), out);
      matmul(t, in, out, 1.0f, plain(y, out), plain(w, in), 0.0f, x.floats(), in);
      matmul(out, in, t, 1.0f, turned(y, out), plain(x, in), 0.0f, w.floats(), in);
    });
  }
};

void linear(benchmark::State& state, const std::string& model, const std::string& module, std::int64_t tokens,
            DType type) {
  const ModelGraph m = load_model(model);
  const Op& op = find_op(m, OpKind::linear, module);
  OpBench ours(m, op, tokens, type);
  Library library(tokens, op.shape);
  library.run();
  double our_seconds = 0, library_seconds = 0;
  for (auto _ : state) {
    const double step = ours.forward() + ours.backward();
    our_seconds += step;
    library_seconds += library.run();
    state.SetIterationTime(step);
  }
  const double flops =
      (forward_flops(op, ours.work) + backward_flops(op, ours.work)) * static_cast<double>(state.iterations());
  state.counters["GFLOP/s"] = flops / our_seconds * 1e-9;
  state.counters["library"] = flops / library_seconds * 1e-9;
  state.counters["ratio"] = library_seconds / our_seconds;
}

void attention(benchmark::State& state, const std::string& model, const std::string& module, std::int64_t tokens,
               DType type) {
  const ModelGraph m = load_model(model);
  const Op& op = find_op(m, OpKind::attention, module);
  OpBench ours(m, op, tokens, type);
  double forward = 0, backward = 0;
  for (auto _ : state) {
    const double f = ours.forward(), b = ours.backward();
    forward += f, backward += b;
    state.SetIterationTime(f + b);
  }
  const double n = static_cast<double>(state.iterations());
  state.counters["forward GFLOP/s"] = forward_flops(op, ours.work) * n / forward * 1e-9;
  state.counters["backward GFLOP/s"] = backward_flops(op, ours.work) * n / backward * 1e-9;
}

// Time only; the second of two AdamW steps of a unit of 7 million parameters, or an op of llama-100m.json.
void op_time(benchmark::State& state, OpKind kind) {
  const ModelGraph m = load_model(std::string(FSDP_BENCH_DIR) + "/llama-100m.json");
  const auto found = std::find_if(m.ops.begin(), m.ops.end(), [&](const Op& op) { return op.kind == kind; });
  OpBench ours(m, *found, 512, DType::f32);
  const bool has_backward = kind != OpKind::add;
  double forward = 0, backward = 0;
  for (auto _ : state) {
    const double f = ours.forward(), b = has_backward ? ours.backward() : 0;
    forward += f, backward += b;
    state.SetIterationTime(f + b);
  }
  const double n = static_cast<double>(state.iterations());
  state.counters["forward ms"] = forward / n * 1e3;
  state.counters["backward ms"] = backward / n * 1e3;
}

void adamw_time(benchmark::State& state) {
  const std::int64_t n = 3'539'712;  // half a block
  UnitLayout layout;
  layout.shards = 1;
  layout.shard_elements = n;
  ShardedParam p;
  p.rows = n;
  p.row_elements = 1;
  p.chunk_rows = n;
  layout.params = {p};
  Room gradient(4 * n), shard(4 * n), first(4 * n), second(4 * n);
  double sum = 0;
  for (auto _ : state) {
    const double t = seconds([&] {
      host_kernel_set().adamw(
          {layout, 0, {}, 1, DType::f32, gradient.view(), shard.view(), first.view(), second.view()});
    });
    sum += t;
    state.SetIterationTime(t);
  }
  state.counters["GB/s"] = 28e-9 * static_cast<double>(n) * static_cast<double>(state.iterations()) / sum;
}

void add(const std::string& what, const std::string& model, const std::string& module, std::int64_t tokens,
         DType type) {
  const std::string title =
      what + " " + model + " " + module + " " + std::to_string(tokens) + " tokens " + std::string(name(type));
  auto* b = what == "linear" ? benchmark::RegisterBenchmark(title.c_str(), linear, model, module, tokens, type)
                             : benchmark::RegisterBenchmark(title.c_str(), attention, model, module, tokens, type);
  b->UseManualTime()->Unit(benchmark::kMillisecond);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("matrix products", std::string(host_matmul_library()));
  benchmark::AddCustomContext("kernels", std::string(host_kernel_set().instructions()));
  for (const OpKind kind : {OpKind::embedding, OpKind::rms_norm, OpKind::rotary, OpKind::attention, OpKind::swiglu,
                            OpKind::add, OpKind::cross_entropy})
    benchmark::RegisterBenchmark(("op " + std::string(name(kind)) + " 512 tokens fp32").c_str(), op_time, kind)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("adamw fp32", adamw_time)->UseManualTime()->Unit(benchmark::kMillisecond);
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const char* module : {"self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj", "mlp.down_proj"})
      add("linear", "llama3-8b", std::string("model.layers.0.") + module, 256, type);
    for (const char* module : {"attn.c_attn", "mlp.c_fc", "mlp.c_proj"})
      add("linear", "gpt2", std::string("transformer.h.0.") + module, 512, type);
    add("attention", "llama3-8b", "model.layers.0.self_attn", 1024, type);
    add("attention", "gpt2", "transformer.h.0.attn", 512, type);
  }
  benchmark::RunSpecifiedBenchmarks();
}
