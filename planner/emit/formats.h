// Private to the emitters: helpers of the formats. One file per format, and a row in emit.cpp's table.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "planner/emit.h"

namespace fsdp {

[[nodiscard]] Emitted emit_pytorch(const ShardingPlan&, const ModelGraph&, const EmitContext&);
[[nodiscard]] Emitted emit_accelerate(const ShardingPlan&, const ModelGraph&, const EmitContext&);
[[nodiscard]] Emitted emit_torchtitan(const ShardingPlan&, const ModelGraph&, const EmitContext&);
[[nodiscard]] Emitted emit_torchtitan_arguments(const ShardingPlan&, const ModelGraph&, const EmitContext&);
[[nodiscard]] Emitted emit_torchtitan_toml(const ShardingPlan&, const ModelGraph&, const EmitContext&);
[[nodiscard]] Emitted emit_transformers(const ShardingPlan&, const ModelGraph&, const EmitContext&);
[[nodiscard]] Emitted emit_automodel(const ShardingPlan&, const ModelGraph&, const EmitContext&);
[[nodiscard]] Emitted emit_lightning(const ShardingPlan&, const ModelGraph&, const EmitContext&);
[[nodiscard]] Emitted emit_composer(const ShardingPlan&, const ModelGraph&, const EmitContext&);
[[nodiscard]] Emitted emit_deepspeed(const ShardingPlan&, const ModelGraph&, const EmitContext&);

// Collects what a format cannot express, and the plan that its file describes.
struct Inexactness {
  explicit Inexactness(const ShardingPlan& plan) : written(plan) {}
  // The file has `value` in place of the plan's.
  template <class T, class V>
  void changes(T ShardingPlan::*member, V value, const std::string& field, const std::string& what) {
    written.*member = std::move(value);
    changed(field, what);
  }
  // The same, where `written` has been changed already.
  void changed(const std::string& field, const std::string& what) {
    list.push_back({field, what, Inexact::Effect::written});
  }
  void unknown(const std::string& field, const std::string& what) {
    list.push_back({field, what, Inexact::Effect::unknown});
  }
  void elsewhere(const std::string& field, const std::string& what) {
    list.push_back({field, what, Inexact::Effect::none});
  }
  ShardingPlan written;
  std::vector<Inexact> list;
};

// What a user's own training loop says in any case: batches, optimizer, clipping, seed, what is frozen.
void write_loop(Inexactness&, const ModelGraph&);
void write_optimizer(Inexactness&);  // of it, optimizer and clipping
// For configuration files, which cannot choose how far ahead units are gathered: FSDP2's default, one unit in backward.
void write_default_prefetch(Inexactness&);
// Switches and prefetch lists of single units, ignored parameters and other choices of fsdp2 that are a line of a
// script: a configuration file has none of them. They are those of `planned`, whatever units the file has. `target`
// names who decides them there.
void leave_out_uncommon(Inexactness&, const ShardingPlan& planned, const std::string& target);
// For targets that convert no layers.
void leave_out_float8(Inexactness&, const ShardingPlan& planned);
// For targets that split no layers. Returns the plan without its tensor dimension: what the target is told instead.
[[nodiscard]] ShardingPlan leave_out_tensor(Inexactness&, const ShardingPlan& planned);
// What the training loop does by hand; `loss_in_model`: not that, which the file or the loop that runs it has. Its
// threads are the launcher's, unless the file sets them itself.
void leave_out_loop(Inexactness&, const ShardingPlan& planned, bool loss_in_model = false, bool sets_threads = false);
// Of files that are run by a loop of transformers' kind.
void leave_loss_to_script(Inexactness&, const ShardingPlan& planned);
// For targets that train transformers' model: what a prediction was made for where that is another, and that nothing is
// compiled.
void say_implementation(Inexactness&, const EmitContext&, const std::string& instead);
[[nodiscard]] std::string optimizer_text(const Optimizer&);  // "AdamW(lr=0.0003, betas=(0.9, 0.95), ...)"

// True if this unit reshards its parameters after forward (automatic: yes, but no for the root).
[[nodiscard]] bool reshards(const Unit&);
// The blocks of the model, in order.
[[nodiscard]] std::vector<std::string> block_names(const ModelGraph&);
// Comment lines at the top: what the file is and what its format cannot express. Every format comments with '#'.
[[nodiscard]] std::string header(const ShardingPlan&, const ModelGraph&, const std::string& what,
                                 const std::vector<Inexact>& cannot_express);
[[nodiscard]] bool has_frozen_parameters(const ModelGraph&);
void say_frozen(Inexactness&, const ModelGraph&);  // that a script of one's own freezes them, and puts in adapters
[[nodiscard]] std::string join(const std::vector<std::string>&, const std::string& separator);
// A number in a form that all targets read: 0.1, 1e-08, 3.0.
[[nodiscard]] std::string number(double);
[[nodiscard]] std::string norm_type_text(const ShardingPlan&);  // "3.0", "inf"
// A string literal that Python, YAML and TOML read alike.
[[nodiscard]] std::string quoted(const std::string&);

}  // namespace fsdp
