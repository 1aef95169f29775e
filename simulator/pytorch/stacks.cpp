#include "simulator/pytorch/stacks.h"

#include <array>
#include <optional>
#include <string_view>

namespace fsdp {
namespace {

// A call whose file ends so, and whose function's name holds these words, allocates for this part. The first row that
// fits the innermost call decides, then the next call.
struct Rule {
  std::string_view file, function;
  RecordedPart part;
};
// clang-format off: a table
constexpr std::array<Rule, 17> kRules = {{
    {"_fsdp_param.py", "init_all_gather_outputs", RecordedPart::unsharded},
    {"_fsdp_param.py", "alloc_all_gather_outputs", RecordedPart::unsharded},
    {"_fsdp_param.py", "init_unsharded_param", RecordedPart::unsharded},
    {"_fsdp_param.py", "to_sharded_post_forward", RecordedPart::unsharded},
    {"_fsdp_param.py", "_init_sharded_param", RecordedPart::parameter_shards},
    {"_fsdp_collectives.py", "foreach_all_gather_copy_out", RecordedPart::unsharded},
    {"_fsdp_collectives.py", "foreach_all_gather", RecordedPart::gather},
    {"_fsdp_collectives.py", "foreach_reduce", RecordedPart::reduce},
    {"_flat_param.py", "_alloc_padded_unsharded_flat_param", RecordedPart::unsharded},
    {"_flat_param.py", "_use_low_precision_shard", RecordedPart::gather},
    {"_runtime_utils.py", "_reduce_grad", RecordedPart::reduce},
    {"torch/nn/modules/module.py", "_apply", RecordedPart::parameter_shards},
    {"torch/nn/modules/module.py", "_call_impl", RecordedPart::activations},
    {"torch/nn/functional.py", "", RecordedPart::activations},
    {"torch/autograd/graph.py", "_engine_run_backward", RecordedPart::activations},
    {"", "torch::autograd::", RecordedPart::activations},
    {"torch/nn/utils/clip_grad.py", "", RecordedPart::activations},
}};
// clang-format on
constexpr std::int64_t kMaxLine = std::int64_t{1} << 40;
constexpr std::string_view kOptimizerFiles = "torch/optim/", kStates = "_init_group";

bool holds(std::string_view text, std::string_view words) { return text.find(words) != std::string_view::npos; }

// A buffer of a predicted snapshot says what it is: "activations", "parameter shards of model.norm.weight".
std::optional<RecordedPart> predicted_part(std::string_view name_text) {
  for (int k = 0; k < kBufferKinds; ++k) {
    const std::string_view kind = name(static_cast<BufferKind>(k));
    if (name_text == kind || (name_text.starts_with(kind) && name_text.substr(kind.size()).starts_with(" of ")))
      return recorded_part(static_cast<BufferKind>(k));
  }
  return std::nullopt;
}

struct Call {
  std::string_view file, function;
};
Call call_of(const PickleValue& frame) { return {frame.at("filename").text(), frame.at("name").text()}; }

bool is_inside_pytorch(const Call& call) {
  return call.file.empty() || call.file == "??" || holds(call.file, "/torch/") || call.file.starts_with("torch/") ||
         holds(call.function, "::") || holds(call.file, "fsdp_plan/") || call.file.ends_with(".cpp") ||
         call.file.ends_with(".so");
}

}  // namespace

StackMeaning meaning_of(const PickleValue& frames) {
  StackMeaning meaning;
  for (const PickleValue& frame : frames.list()) {
    const Call call = call_of(frame);
    meaning.recorded = true;
    if (call.file == "library" || holds(call.function, "getNewWorkspace") ||
        holds(call.function, "getCUDABlasLtWorkspace")) {
      meaning.workspace = true;
      return meaning;
    }
    if (call.file == "buffer") {
      meaning.part = predicted_part(call.function).value_or(RecordedPart::other);
      return meaning;
    }
    if (holds(call.file, kOptimizerFiles)) {
      meaning.part = holds(call.function, kStates) ? RecordedPart::optimizer_states : RecordedPart::activations;
      if (meaning.part == RecordedPart::optimizer_states) return meaning;
      continue;  // the states are made further out
    }
    for (const Rule& rule : kRules)
      if (call.file.ends_with(rule.file) && holds(call.function, rule.function)) {
        meaning.part = rule.part;
        return meaning;
      }
  }
  return meaning;
}

std::string place_of(const PickleValue& frames) {
  for (const PickleValue& frame : frames.list()) {
    const Call call = call_of(frame);
    if (is_inside_pytorch(call) || call.file == "buffer") continue;
    std::string words(call.function);
    words += " (" + std::string(call.file.substr(call.file.find_last_of('/') + 1)) + ":" +
             std::to_string(frame.at("line").integer(-1, kMaxLine)) + ")";
    for (char& c : words)
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    return words;
  }
  return {};
}

}  // namespace fsdp
