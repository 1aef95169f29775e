// Whole tiny models from their config.json, trained by the kernels alone (no sharding, no runtime: forward ops in
// order, backward in reverse order), against PyTorch: tests/golden/tiny_models.json.
#include <doctest/doctest.h>

#include <numeric>

#include "executor/data/synthetic.h"
#include "executor/run.h"
#include "models/catalog.h"
#include "planner/layout.h"
#include "tests/support/kernels_support.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

double norm(const Numbers& x) { return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0)); }

// One parameter as a unit of its own on one rank.
UnitLayout whole(const Parameter& p) {
  UnitLayout layout;
  layout.params = {{.param = 0, .rows = p.numel(), .row_elements = 1, .chunk_rows = p.numel(), .offset = 0}};
  layout.shard_elements = layout.numel = p.numel();
  return layout;
}

// Plain training in fp64: every tensor has its own memory, every gradient is added to.
class Trainer {
 public:
  Trainer(const ModelGraph& model, const nlohmann::json& golden)
      : model_(model), seed_(golden["seed"]), work_{golden["global_batch"], golden["seq_len"], 8}, vocab_(model.vocab) {
    const auto& a = golden["adamw"];
    adamw_ = {OptimizerKind::adamw, a["lr"], a["beta1"], a["beta2"], a["eps"], a["weight_decay"]};
    for (const Parameter& p : model.parameters) {
      values_.emplace_back(static_cast<std::size_t>(p.numel()));
      for (std::size_t i = 0; i < values_.back().size(); ++i)
        values_.back()[i] = initial_value(seed_, p, static_cast<std::int64_t>(i));
      means_.emplace_back(values_.back().size(), 0.0);
      squares_.emplace_back(values_.back().size(), 0.0);
    }
  }

  double step(std::int64_t number) {  // counts from 0; returns the loss
    gradients_.clear();
    for (const Numbers& v : values_) gradients_.emplace_back(v.size(), 0.0);
    tensors_.clear(), tensor_gradients_.clear(), extras_.clear();
    for (const Tensor& t : model_.tensors) {
      tensors_.emplace_back(static_cast<std::size_t>(elements(t, work_)), 0.0);
      tensor_gradients_.emplace_back(tensors_.back().size(), 0.0);
    }
    load_batch(number);
    for (const Op& op : model_.ops) forward(op);
    for (std::size_t i = model_.ops.size(); i-- > 0;) backward(i);
    for (std::size_t i = 0; i < values_.size(); ++i) update(whole(model_.parameters[i]), number + 1, i);
    return tensors_[static_cast<std::size_t>(model_.ops.back().outputs[0])][0];
  }

  const std::vector<Numbers>& values() const { return values_; }
  const std::vector<Numbers>& gradients() const { return gradients_; }

 private:
  void update(const UnitLayout& layout, std::int64_t step, std::size_t i) {
    host_kernel_set().adamw({layout, 0, adamw_, step, DType::f64, view_of(gradients_[i]), view_of(values_[i]),
                             view_of(means_[i]), view_of(squares_[i])});
  }
  void load_batch(std::int64_t number) {
    std::size_t at = 0;
    for (std::int64_t s = 0; s < work_.sequences; ++s)
      for (std::int64_t p = 0; p < work_.seq_len; ++p, ++at)
        for (const auto& [tensor, ahead] : {std::pair{model_.ids, 0}, std::pair{model_.targets, 1}}) {
          const std::int64_t id = synthetic_token(seed_, number * work_.sequences + s, p + ahead, vocab_);
          std::memcpy(&tensors_[static_cast<std::size_t>(tensor)][at], &id, 8);
        }
  }

  KernelArg tensor(std::int32_t t) { return {view_of(tensors_[static_cast<std::size_t>(t)])}; }
  double weight() const { return 1.0 / static_cast<double>(work_.tokens()); }

  void forward(const Op& op) {
    const OpFacts f = facts(native_implementation(), op, work_);
    extras_.emplace_back(f.saved_extra_bytes);
    Block scratch(f.forward_scratch_bytes);
    std::vector<KernelArg> args;
    for (const auto t : op.inputs) args.push_back(tensor(t));
    for (const auto p : op.params) args.push_back({view_of(values_[static_cast<std::size_t>(p)])});
    for (const auto t : op.outputs) args.push_back(tensor(t));
    args.push_back({extras_.back().view()});
    args.push_back({scratch.view()});
    host_kernel_set().forward(op, work_, DType::f64, args, weight());
  }

  // add, and the x of position_embedding, hand the gradient on.
  void pass_on(const Op& op) {
    const Numbers& from = tensor_gradients_[static_cast<std::size_t>(op.outputs[0])];
    for (const auto t : op.inputs)
      for (std::size_t i = 0; i < from.size(); ++i) tensor_gradients_[static_cast<std::size_t>(t)][i] += from[i];
  }

  void backward(std::size_t index) {
    const Op& op = model_.ops[index];
    if (op.kind == OpKind::add || op.kind == OpKind::position_embedding) pass_on(op);
    if (op.kind == OpKind::add) return;
    const OpFacts f = facts(native_implementation(), op, work_);
    Block scratch(f.backward_scratch_bytes);
    std::vector<KernelArg> args;
    const auto gradient = [&](std::int32_t t) -> KernelArg {
      return {view_of(tensor_gradients_[static_cast<std::size_t>(t)]), true};
    };
    for (const auto t : op.outputs) args.push_back(op.kind == OpKind::cross_entropy ? KernelArg{} : gradient(t));
    for (std::size_t i = 0; i < op.inputs.size(); ++i)
      args.push_back((f.saved_inputs >> i & 1) != 0 ? tensor(op.inputs[i]) : KernelArg{});
    for (std::size_t i = 0; i < op.outputs.size(); ++i)
      args.push_back((f.saved_outputs >> i & 1) != 0 ? tensor(op.outputs[i]) : KernelArg{});
    for (const auto p : op.params) args.push_back({view_of(values_[static_cast<std::size_t>(p)])});
    args.push_back({extras_[index].view()});
    args.push_back({scratch.view()});
    for (const auto t : op.inputs)
      args.push_back(model_.tensors[static_cast<std::size_t>(t)].requires_grad ? gradient(t) : KernelArg{});
    for (const auto p : op.params) args.push_back({view_of(gradients_[static_cast<std::size_t>(p)]), true});
    host_kernel_set().backward(op, work_, DType::f64, args, weight());
  }

  const ModelGraph& model_;
  std::uint64_t seed_;
  Workload work_;
  std::int64_t vocab_;
  Optimizer adamw_;
  std::vector<Numbers> values_, means_, squares_, gradients_, tensors_, tensor_gradients_;
  std::vector<Block> extras_;
};

void check_tensors(const ModelGraph& model, const std::vector<Numbers>& ours, const nlohmann::json& norms,
                   const nlohmann::json& values, double tolerance) {
  REQUIRE(norms.size() == model.parameters.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const std::string& name = model.parameters[i].name;
    CAPTURE(name);
    CHECK(distance({norm(ours[i])}, {norms[name].get<double>()}) <= tolerance);
    if (values.contains(name)) CHECK(distance(ours[i], values[name].get<Numbers>()) <= tolerance);
  }
}

}  // namespace

// Sums in another order: some 10^4 operations deep at 1.1e-16 each stays far below 1e-10, the bound that sharded runs
// must keep too.
TEST_CASE("five steps of AdamW equal PyTorch's") {
  const nlohmann::json golden = testing::golden("tiny_models.json");
  REQUIRE(golden["models"].size() == 5);
  for (const auto& recorded : golden["models"]) {
    const std::string title = recorded["name"];
    CAPTURE(title);
    const ModelGraph model = model_from_config(recorded["config"].get<std::string>(), "config.json", golden["seq_len"]);
    Trainer trainer(model, golden);
    for (std::int64_t s = 0; s < golden["steps"]; ++s) {
      CHECK(distance({trainer.step(s)}, {recorded["losses"][static_cast<std::size_t>(s)].get<double>()}) <= 1e-12);
      if (s == 0)
        check_tensors(model, trainer.gradients(), recorded["first_gradient_norms"], recorded["first_gradients"], 1e-10);
    }
    check_tensors(model, trainer.values(), recorded["final_norms"], recorded["final_values"], 1e-10);
  }
}

TEST_CASE("weights and tokens equal the Python hash bit for bit") {
  const nlohmann::json golden = testing::golden("tiny_models.json");
  for (std::int64_t s = 0; s < 3; ++s)
    for (std::int64_t p = 0; p < 5; ++p)
      CHECK(synthetic_token(golden["seed"], s, p, 37) ==
            golden["first_tokens"][static_cast<std::size_t>(s)][static_cast<std::size_t>(p)]);
  Parameter matrix;
  matrix.name = "model.norm.weight.not_a_vector", matrix.shape = {2, 3};
  for (std::int64_t i = 0; i < 6; ++i)
    CHECK(initial_value(golden["seed"], matrix, i) == golden["first_weights"][static_cast<std::size_t>(i)]);
}

// 10^6 draws: the mean's standard error is 0.02 / 1000 = 2e-5, the deviation's about 0.02 / 1400; five of each are
// allowed.
TEST_CASE("weights are centred, 0.02 wide, bounded, and differ by name, seed and place") {
  Parameter p;
  p.name = "a.weight", p.shape = {1000, 1000};
  Numbers x(1'000'000), other(x.size());
  fill_initial_values(5, p, 0, 1'000'000, DType::f64, view_of(x).data);
  CHECK(x[777] == initial_value(5, p, 777));
  double mean = 0, square = 0, most = 0;
  for (const double v : x) mean += v / 1e6, square += v * v / 1e6, most = std::max(most, std::abs(v));
  CHECK(std::abs(mean) < 1e-4);
  CHECK(std::abs(std::sqrt(square) - 0.02) < 5 * 0.02 / 1400);
  CHECK(most < 0.02 * 3.4642);
  fill_initial_values(5, p, 1, 999'999, DType::f64, view_of(other).data);
  CHECK(other[0] == x[1]);
  for (const auto& [seed, name] : {std::pair<std::uint64_t, std::string>{6, "a.weight"}, {5, "b.weight"}}) {
    p.name = name;
    fill_initial_values(seed, p, 0, 1'000'000, DType::f64, view_of(other).data);
    double product = 0;
    for (std::size_t i = 0; i < x.size(); ++i) product += x[i] * other[i] / (4e-4 * 1e6);
    CHECK(std::abs(product) < 5e-3);  // correlation of independent draws: 1e-3 deviation
  }
  Parameter bias, gain;
  bias.name = "x.bias", bias.shape = {3}, gain.name = "x.weight", gain.shape = {3};
  CHECK(initial_value(5, bias, 1) == 0.0);
  CHECK(initial_value(5, gain, 1) == 1.0);
  CHECK_THROWS(static_cast<void>(synthetic_token(1, 0, 0, 0)));
}
