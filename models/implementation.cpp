#include "models/implementation.h"

#include <algorithm>
#include <vector>

#include "models/implementations/float8.h"
#include "models/implementations/pytorch_ops.h"
#include "models/implementations/traced.h"
#include "models/input/digest.h"
#include "models/input/error.h"
#include "models/input/limits.h"
#include "models/input/suggest.h"
#include "models/units.h"

namespace fsdp {
namespace {

// Every implementation that has a name.
std::vector<const Implementation*> all() {
  std::vector<const Implementation*> found = {&native_implementation(), &native_cuda_implementation()};
  for (const Implementation& i : torchtitan_implementations()) found.push_back(&i);
  found.insert(found.end(), {&hf_implementation(false), &hf_implementation(true), &hf_4_implementation(),
                             &hf_eager_attention_implementation(), &automodel_implementation()});
  found.insert(found.end(),
               {&foundry_implementation(false), &foundry_implementation(true), &foundry_2023_implementation(),
                &torch_cpu_implementation(), &traced_implementation(), &traced_expandable_implementation()});
  return found;
}

// One op of each kind with small, pairwise different extents, so that a digest notices any change of a rule.
Op probe(OpKind kind, bool traced) {
  Op op;
  op.kind = kind;
  op.shape = {.in = 17,
              .out = 29,
              .width = 24,
              .groups = kind == OpKind::moe_route ? 1 : 3,
              .heads = 6,
              .kv_heads = 2,
              .head_dim = 10,
              .vocab = 37,
              .positions = 41,
              .opaque_flops_per_token = 43,
              .opaque_bytes_per_token = 47,
              .opaque_saved_bytes_per_token = 53};
  op.params = {0};
  if (traced) op.shape.traced = 0;
  if (kind > OpKind::opaque && kind <= OpKind::moe_combine)
    op.shape.experts = {.count = 5, .top_k = 2, .capacity_factor = 1};
  return op;
}

// Of what units' hooks cast it is not known what compilers and autocast (llm-foundry) make, and transformers calls its
// blocks with tables of angles, which hooks cast, too.
OpRule rule_of(const Implementation& i, const Op& op) {
  if (op.kind != OpKind::cast) return i.rules[static_cast<std::size_t>(op.kind)];
  const bool unknown = i.compiled || i.of_traces || i.frames_hold_variables || i.name.starts_with("foundry");
  return unknown && !(i.peft_casts && op.shape.of_adapter) ? nullptr : pytorch::cast;
}

bool knows(const Implementation& i, const Op& op) {
  return i.of_traces == (op.shape.traced != kNone) && rule_of(i, op) != nullptr && i.lacks(op).empty();
}

[[noreturn]] void refuse_op(const Implementation& i, const Op& op) {
  if (i.of_traces)
    throw InputError(
        setting("implementation"),
        std::string(i.name) + " is of models that PyTorch ran, and this one " + "is of the program's own description",
        "leave it out, or export the model (python -m fsdp_plan export)");
  if (op.shape.traced != kNone)
    throw InputError(setting("implementation"),
                     std::string(i.name) + " knows the program's own models, and this one was exported from PyTorch",
                     "leave it out, or use " + std::string(traced_implementation().name));
  std::string_view lack = rule_of(i, op) != nullptr ? i.lacks(op) : name(op.kind);
  if (op.kind == OpKind::redistribute) lack = "tensor parallelism";
  if (op.kind == OpKind::cast) lack = "units that compute in several dtypes";
  std::string alike, others;  // compiled as `i` is, and not
  for (const Implementation* other : all()) {
    if (!knows(*other, op) || other == &hf_4_implementation()) continue;  // it is hf, but for experts
    std::string& known = other->compiled == i.compiled ? alike : others;
    known += (known.empty() ? "" : ", ") + std::string(other->name);
    if (other->compiled != i.compiled && !i.compiled) known += " with --compile";
  }
  const std::string problem = std::string(i.name) + (i.compiled ? ", compiled," : "") +
                              " has no known memory and time for " + std::string(lack);
  if (i.compiled && alike.empty() && !others.empty())
    throw InputError(setting("compile"), problem, "leave it out; those that have, without it: " + others);
  if (i.compiled && !others.empty()) others = "without --compile: " + others;
  const std::string between = alike.empty() || others.empty() ? "" : i.compiled ? "; " : ", ";
  const std::string known = alike + between + others;
  throw InputError(setting("implementation"), problem,
                   known.empty() ? "none has; `show model` has the model's parameters" : "those that have: " + known);
}

[[noreturn]] void refuse_size(const Op& op, const Workload& w) {
  throw InputError(setting("seq_len"),
                   std::string(name(op.kind)) + " of " + std::to_string(w.sequences) + " sequences of " +
                       std::to_string(w.seq_len) + " tokens takes more than " + human(Bytes(kMostOpBytes)),
                   "use fewer or shorter sequences");
}

}  // namespace

std::string_view few_families(const Op& op) {
  const OpShape& s = op.shape;
  if (s.float8 == Float8Recipe::delayed) return "TransformerEngine's products in 8 bits";
  if (s.float8 != Float8Recipe::none) return "products in 8 bits";
  if (s.four_bits != FourBits::none) return "weights in 4 bits";
  if (s.dropout > 0) return "adapters with dropout";
  if (op.kind == OpKind::rms_norm && s.weight_offset != 0) return "rms_norm with an offset to its weight";
  if (op.kind == OpKind::rotary && s.packed) return "rotary of packed q, k and v";
  if (op.kind == OpKind::rotary && s.rotated != 0) return "rotary of a part of each head";
  if (op.kind == OpKind::gelu && s.fast) return "gelu_fast";
  if (op.kind == OpKind::linear && s.in_fp32) return "a router in fp32";
  if (op.kind == OpKind::moe_route && s.sigmoid) return "experts chosen by sigmoids";
  if (op.kind == OpKind::moe_route && s.of_chosen) return "experts whose weights are a softmax of the chosen ones";
  if (op.kind == OpKind::expert_linear && op.params.size() > 1) return "experts with biases";
  if (op.kind == OpKind::swiglu && s.clamped) return "swiglu with limits (gpt-oss)";
  if (op.kind == OpKind::rotary && s.by_halves) return "rotary positions by halves (gpt-oss)";
  if (op.kind == OpKind::rms_norm && s.in > s.width) return "latent attention";
  if (op.kind != OpKind::attention) return {};
  if (s.v_head_dim > 0) return "latent attention";
  if (s.sinks) return "attention with sinks";
  if (s.cap != 0) return "attention with capped scores";
  if (s.always_masked) return "attention with a mask that is always written out (Falcon's)";
  if (s.packed && op.inputs.size() == 2) return "attention of packed v";
  return {};
}

const Implementation& find_implementation(std::string_view name, bool compiled, std::string_view where) {
  for (const Implementation* i : all()) {
    if (i->name == name && i->compiled == compiled) return *i;
  }
  for (const Implementation* i : all()) {
    if (i->name == name && i->compiled)
      throw InputError(std::string(where), "\"" + std::string(name) + "\" has no eager form", "add --compile");
    if (i->name == name)
      throw InputError(std::string(where), "\"" + std::string(name) + "\" has no compiled form", "leave out --compile");
  }
  throw InputError(std::string(where), "\"" + printable(name) + "\" is no implementation",
                   suggestion(name, implementation_names()));
}

const Implementation& with_async_tensor(const Implementation& plain, std::string_view where) {
  static const std::vector<Implementation> variants = [] {
    std::vector<Implementation> found(torchtitan_implementations().begin(), torchtitan_implementations().end());
    std::erase_if(found, [](const Implementation& i) { return !i.compiled; });
    for (Implementation& i : found) i.async_tensor = true;
    return found;
  }();
  for (const Implementation& i : variants) {
    if (i.name != plain.name) continue;
    if (plain.compiled) return i;
    throw InputError(std::string(where), "is something that torch.compile does, and the blocks are not compiled",
                     "add --compile");
  }
  throw InputError(std::string(where), "is known of torchtitan's compiled blocks, not of " + std::string(plain.name),
                   "leave it out, or use --implementation torchtitan --compile");
}

Implementation before_torch_2_11(Implementation newer) {
  if (newer.sdpa == AttentionKernel::sdpa) {
    newer.sdpa = AttentionKernel::sdpa_before_2_11;
    newer.persistent_products = true;
  }
  return newer;
}

std::string implementation_text(const Implementation& i) {
  return std::string(i.name) + (i.compiled ? "+compile" : "") + (i.async_tensor ? "+async-tensor" : "");
}

const Implementation& usual_implementation(const ModelGraph& model, bool host, bool compiled, std::string_view where) {
  if (!model.trace.empty()) return find_implementation(traced_implementation().name, compiled, where);
  if (host) return find_implementation("native", compiled, where);
  for (const Implementation* i : all()) {
    const bool tried = i->name == "torchtitan" || i->name == "hf" || i->name == "hf-eager-attention";
    if (tried && i->compiled == compiled &&
        std::all_of(model.ops.begin(), model.ops.end(), [&](const Op& op) { return knows(*i, op); }))
      return *i;
  }
  return torchtitan_implementation(compiled);
}

std::vector<std::string> implementation_names() {
  std::vector<std::string> names;
  for (const Implementation* i : all())
    if (names.empty() || names.back() != i->name) names.emplace_back(i->name);
  return names;
}

OpFacts facts(const Implementation& implementation, const Op& op, const Workload& workload) {
  if (!knows(implementation, op)) refuse_op(implementation, op);
  const OpRule rule = rule_of(implementation, op);
  try {
    OpFacts f = rule(op, workload.seen_by(op.shape));
    if (f.attention == AttentionKernel::sdpa) f.attention = implementation.sdpa;
    for (const std::int64_t bytes : {f.saved_extra_bytes, f.forward_scratch_bytes, f.backward_scratch_bytes,
                                     f.forward_traffic_bytes, f.backward_traffic_bytes})
      if (bytes > kMostOpBytes) refuse_size(op, workload);
    return f;
  } catch (const InputError& e) {
    if (e.file() == kOpSize) refuse_size(op, workload);
    throw;
  }
}

namespace {

// OpFacts::saves_factors, where q, k or v get no gradient, as recorded (tests/torch/record_saved.py). The scores keep k
// for q's and q for k's, and the result keeps v for theirs; q, where it is no copy, and v stay until attention returns,
// kept or not. Without a gradient of the scores backward is one product.
void keep_for_some(OpFacts& f, const Op& op, const Workload& work, const ModelGraph& model) {
  const auto differentiable = [&](std::size_t i) {
    return model.tensors[static_cast<std::size_t>(op.inputs[i])].requires_grad;
  };
  const bool of_q = differentiable(0), of_k = differentiable(1), of_v = differentiable(2);
  const std::int64_t kv = work.tokens() * op.shape.kv_heads * op.shape.head_dim * work.element_bytes,
                     q = kv / op.shape.kv_heads * op.shape.heads;
  f.saved_extra_bytes -= (of_q ? 0 : q) + (of_k ? 0 : q) + (of_q || of_k ? 0 : q);
  f.forward_scratch_bytes += (of_k || work.sequences > 1 ? 0 : q) + (of_q || of_k ? 0 : q);
  if (!of_q && !of_k) f.backward_scratch_bytes = q - kv;
  else f.backward_scratch_bytes += (of_q ? 0 : q) + (of_k ? 0 : kv) - (of_v ? 0 : q - kv);
}

// Where none does: what is multiplied stays, all the same; at the softmax there is neither a result nor a copy.
std::int64_t factors_of_none(const OpFacts& f, const Op& op, const Workload& work) {
  const std::int64_t q = work.tokens() * op.shape.heads * op.shape.head_dim * work.element_bytes;
  return f.saved_extra_bytes - q * (work.sequences > 1 && !op.shape.by_head ? 2 : 1);
}

// The same of attention with sinks, whose keys are a copy where heads share them; the scores' own gradient is what
// needs values, and the places of maxima.
void keep_for_some_with_sinks(OpFacts& f, const Op& op, const Workload& work, const ModelGraph& model) {
  const auto differentiable = [&](std::size_t i) {
    return model.tensors[static_cast<std::size_t>(op.inputs[i])].requires_grad;
  };
  const bool of_q = differentiable(0), of_k = differentiable(1), grouped = op.shape.kv_heads != op.shape.heads;
  const std::int64_t rows = work.tokens() * op.shape.heads, q = rows * op.shape.head_dim * work.element_bytes;
  if (!of_k) f.saved_inputs &= 0b110;
  if (!of_q && grouped) f.saved_extra_bytes -= q;
  else if (!of_q) f.saved_inputs &= 0b101;
  if (of_q || of_k || model.parameters[static_cast<std::size_t>(op.params[0])].trainable) return;
  f.saved_inputs = 0;
  f.saved_extra_bytes = rows * (work.seq_len + 1) * work.element_bytes;
}

}  // namespace

OpFacts facts(const Implementation& implementation, const Op& op, const Workload& workload, const ModelGraph& model) {
  OpFacts f = facts(implementation, op, workload);
  if (implementation.compiled) {
    f.saved_extra_bytes += float8::kept_cast_bytes(op, workload, model);
    float8::keep_copies(f, op, model, implementation.float8_copies);
  }
  if (op.shape.traced != kNone) return f;  // what is frozen was frozen when PyTorch ran it
  const auto keep_nothing = [&f] {
    f.saved_inputs = f.saved_outputs = 0, f.saved_extra_bytes = 0;  // a selective checkpoint keeps whole results
    f.variable_bytes += f.passed_bytes, f.passed_bytes = f.variable_saved_bytes = 0;
  };
  const auto trained = [&](std::int32_t p) { return model.parameters[static_cast<std::size_t>(p)].trainable; };
  if (!model.tensors[static_cast<std::size_t>(op.outputs[0])].requires_grad) {
    // What PyTorch's kernels make for backward beside a result is there until they have run, all the same. A norm that
    // is written out has what it multiplies with its weight, or, where it casts its input, the cast and 1/rms in their
    // place.
    const std::int64_t r = checked_mul(checked_mul(workload.tokens(), op.shape.groups, kOpSize), 4, kOpSize);
    const bool asked = implementation.memory == MemorySource::arena;  // our kernels make what they are given room for
    if (f.saved_for_weight_bytes > 0)
      f.forward_scratch_bytes += f.saved_for_weight_bytes + (workload.seen_by(op.shape).element_bytes == 2 ? r : 0);
    else if (f.saves_factors) f.forward_scratch_bytes += factors_of_none(f, op, workload.seen_by(op.shape));
    else if (f.forward_launches == 1 && !asked) f.forward_scratch_bytes += f.saved_extra_bytes;
    keep_nothing();
  }
  const bool input_for_weight =
      is_matmul(op.kind) || op.kind == OpKind::embedding;  // only its gradient reads the input
  if (input_for_weight && !trained(op.params[0])) keep_nothing();
  if (f.saved_for_weight_bytes > 0 && f.saved_extra_bytes > 0 && !trained(op.params[0])) {
    f.saved_extra_bytes -= f.saved_for_weight_bytes;
    f.forward_scratch_bytes += f.saved_for_weight_bytes;
    f.backward_scratch_bytes += f.saved_for_weight_bytes;  // it is gone at backward's worst moment, and counted there
  }
  if (op.shape.sinks && f.saved_extra_bytes > 0) keep_for_some_with_sinks(f, op, workload.seen_by(op.shape), model);
  if (f.saves_factors && f.saved_extra_bytes > 0) keep_for_some(f, op, workload.seen_by(op.shape), model);
  const auto differentiable = [&](std::int32_t t) { return model.tensors[static_cast<std::size_t>(t)].requires_grad; };
  if (op.shape.dropout > 0 && f.saved_extra_bytes > 0 && !differentiable(op.inputs[0])) {
    const std::int64_t kept = workload.tokens() * op.shape.in;  // which numbers were kept only its gradient asks
    f.saved_extra_bytes -= kept;
    f.forward_scratch_bytes += kept, f.backward_scratch_bytes = 0;
    f.forward_inside = {{kept}, "+0 +e -0 +o"}, f.backward_inside = {};
  }
  if (f.saved_extra_bytes > 0 && f.saves_by_input && !differentiable(op.inputs[0])) {
    // inputs[0] goes when the extra bytes appear, and stands for them.
    f.saved_inputs = 0b1;
    f.saved_extra_bytes = 0;
  }
  if (f.saves_by_input && !differentiable(op.inputs[1])) {
    f.forward_scratch_bytes += f.saved_extra_bytes;
    f.saved_extra_bytes = 0;
  }
  return f;
}

namespace {

// The first four always, as in files from before there were more.
void add_temporaries(Digest& d, const Inside& inside) {
  for (std::size_t k = 0; k < inside.bytes.size(); ++k)
    if (k < 4 || inside.bytes[k] != 0) d.add("", inside.bytes[k]);
}

}  // namespace

// Float8Copies where no name stands for them. All but optimizer_form and loss_in_model, which names say, sdpa and
// persistent_products, which change times alone, redistribute, which is no kernel, and cast, which is the same for all:
// files from before they were there stay comparable (but automodel's of before all were without persistent products).
std::string digest(const Implementation& i) {
  Digest d;
  d.add("name", i.name);
  d.add("flags", (i.compiled ? 1 : 0) + (i.backward_adds_in_place ? 2 : 0) + (i.loss_read_every_step ? 4 : 0) +
                     (i.keeps_unneeded_results ? 8 : 0) + (i.recompute_stops_early ? 16 : 0) +
                     (i.frames_hold_inputs ? 32 : 0) + (i.autocast ? 64 : 0) + (i.frames_hold_variables ? 128 : 0) +
                     (i.tensor_collectives_recorded ? 256 : 0) + (i.async_tensor ? 1024 : 0) +
                     (i.frames_hold_adapters ? 2048 : 0) + 4096 * static_cast<int>(i.loop_holds) +
                     (i.ddp_copies_gradients ? 32768 : 0));
  if (i.async_tensor) d.add("host_part", i.host_seconds_per_part);
  d.add("optimizer_temp", i.optimizer_temp_bytes_per_element);
  d.add("optimizer_temps_at_once", i.optimizer_temps_at_once);
  d.add("optimizer_traffic", i.optimizer_traffic);
  if (i.float8_copies == Float8Copies::none || i.float8_copies == Float8Copies::of_all)
    d.add("float8_copies", static_cast<std::int64_t>(i.float8_copies));
  d.add("float8_linear", false);  // as files from before float8 was the plan's have it
  d.add("memory", static_cast<std::int64_t>(i.memory));
  d.add("host_launch", i.host_seconds_per_launch);
  d.add("host_hook", i.host_seconds_per_unit_hook);
  if (i.host_seconds_per_read > 0) d.add("host_read", i.host_seconds_per_read);
  if (i.host_seconds_between_steps > 0) d.add("between_steps", i.host_seconds_between_steps);
  if (i.collectives_between_steps > 0) d.add("collectives_between_steps", i.collectives_between_steps);
  for (int k = 0; k < kOpKinds; ++k) {
    const auto kind = static_cast<OpKind>(k);
    if (i.rules[static_cast<std::size_t>(k)] == nullptr || kind == OpKind::redistribute || kind == OpKind::cast)
      continue;
    for (std::int64_t matmul : {1, 2})
      d.add("keeps", i.keeps_selectively && i.keeps_selectively(probe(static_cast<OpKind>(k), i.of_traces), matmul));
    for (std::int64_t element_bytes : {2, 4, 8}) {
      const OpFacts f = facts(i, probe(static_cast<OpKind>(k), i.of_traces), Workload{2, 13, element_bytes});
      d.add("op", k);
      for (std::int64_t v : {std::int64_t{f.saved_inputs}, std::int64_t{f.saved_outputs}, f.saved_extra_bytes,
                             f.forward_scratch_bytes, f.backward_scratch_bytes, std::int64_t{f.forward_launches},
                             std::int64_t{f.backward_launches}, f.forward_traffic_bytes, f.backward_traffic_bytes,
                             f.result_extra_bytes, std::int64_t{f.extra_replaces_input}})
        d.add("", v);
      if (f.saved_for_weight_bytes > 0) d.add("for_weight", f.saved_for_weight_bytes);
      if (f.saves_by_input) d.add("by_input", f.saves_by_input);
      if (f.saves_factors) d.add("factors", f.saves_factors);
      if (f.forward_reads > 0) d.add("reads", std::int64_t{f.forward_reads});
      if (f.backward_reads > 0) d.add("backward_reads", std::int64_t{f.backward_reads});
      if (f.forward_copied_bytes > 0) d.add("copied", f.forward_copied_bytes);
      if (f.backward_copied_bytes > 0) d.add("backward_copied", f.backward_copied_bytes);
      if (f.wide_outputs != 0) d.add("wide", int{f.wide_outputs});
      if (f.forward_scattered > 0) d.add("scattered", f.forward_scattered);
      if (f.backward_scattered > 0) d.add("backward_scattered", f.backward_scattered);
      if (f.forward_indexed > 0) d.add("indexed", f.forward_indexed);
      if (f.backward_indexed > 0) d.add("backward_indexed", f.backward_indexed);
      if (f.passed_bytes > 0) d.add("passed", f.passed_bytes);
      if (f.variable_bytes > 0) d.add("variable", f.variable_bytes);
      if (f.variable_saved_bytes > 0) d.add("variable_saved", f.variable_saved_bytes);
      d.add("rate", f.forward_rate);
      d.add("rate", f.backward_rate);
      d.add("attention", static_cast<std::int64_t>(f.attention));
      for (const Inside* inside : {&f.forward_inside, &f.backward_inside}) {
        d.add("inside", inside->script.text());
        add_temporaries(d, *inside);
      }
      for (const Inside* inside : {&f.forward_stopped, &f.backward_again}) {
        if (inside->script.empty()) continue;
        d.add("inside", inside->script.text());
        add_temporaries(d, *inside);
      }
      if (f.after_backward.launches > 0) {
        d.add("after_backward", std::int64_t{f.after_backward.launches});
        d.add("", f.after_backward.traffic_bytes);
        d.add("inside", f.after_backward.inside.script.text());
        add_temporaries(d, f.after_backward.inside);
      }
    }
  }
  return d.text();
}

}  // namespace fsdp
