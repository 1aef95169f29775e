#include "cli/training.h"

#include <fmt/format.h>

#include <algorithm>

#include "executor/data/initial_weights.h"
#include "executor/data/token_file.h"

namespace fsdp::cli {
namespace {

LearningRate learning_rate_of(const TrainingFlags& f, const ShardingPlan& plan, const RunOptions& options) {
  const std::int64_t last = options.training.steps_done + std::max(1, options.warmup_steps) + options.steps;
  LearningRate rate;
  rate.peak = f.lr ? parse_coefficient(*f.lr, "--lr", false) : plan.optimizer.lr;
  if (f.lr_schedule) rate.kind = parse_decay(*f.lr_schedule, "--lr-schedule");
  rate.warmup = parse_optional_count(f.lr_warmup, "--lr-warmup", 0, kMostSteps).value_or(0);
  rate.total = parse_optional_count(f.lr_steps, "--lr-steps", 1, kMostSteps).value_or(last);
  if (f.lr_min) rate.least = parse_coefficient(*f.lr_min, "--lr-min", true);
  if (rate.kind == Decay::constant) {
    if (f.lr_min)
      throw InputError("--lr-min", "has no meaning while the rate stays constant",
                       "give --lr-schedule cosine or linear");
    if (f.lr_steps)
      throw InputError("--lr-steps", "has no meaning while the rate stays constant",
                       "give --lr-schedule cosine or linear");
    return rate;
  }
  if (rate.least > rate.peak)
    throw InputError("--lr-min", fmt::format("{} is more than the learning rate, {}", rate.least, rate.peak),
                     "give at most that");
  if (rate.warmup >= rate.total)
    throw InputError("--lr-warmup",
                     fmt::format("{} steps of warm-up leave none of {} to decay in", rate.warmup, rate.total),
                     "give fewer, or more --steps (or --lr-steps)");
  return rate;
}

}  // namespace

void add_training_flags(const Command& app, TrainingFlags& f) {
  app.option("--data", f.data, "train on this text or token file; default: synthetic tokens", "FILE");
  app.option("--data-type", f.data_type, "text (a token is a byte), uint16, uint32 or auto; default auto", "TYPE");
  app.option("--init-from", f.init_from,
             "start from these weights: a safetensors file, index or folder of Hugging Face; with --lora the base "
             "model's",
             "PATH");
  app.option("--init-adapters", f.init_adapters,
             "with --lora and --init-from: start from these adapters, a folder of peft; default: anew, as peft begins",
             "DIR");
  app.option("--lr", f.lr, "learning rate; default: the plan's", "RATE");
  app.option("--lr-schedule", f.lr_schedule, "constant, cosine or linear; default constant", "NAME");
  app.option("--lr-warmup", f.lr_warmup, "steps in which the learning rate rises; default 0", "N");
  app.option("--lr-min", f.lr_min, "learning rate that cosine and linear end at; default 0", "RATE");
  app.option("--lr-steps", f.lr_steps,
             "steps after which they do; default: all of training, this run's last step included", "N");
  app.option("--log", f.log, "append step, loss, learning rate and speed here (.csv or .jsonl)", "FILE");
}

void check_training_flags(const TrainingFlags& f, const Text& output) {
  if (f.log && output && *f.log == *output) throw InputError("--log", "is also the file of -o", "give another name");
  if (f.log && f.data && *f.log == *f.data)
    throw InputError("--log", "is also the file of --data", "give another name");
  if (f.init_adapters && !f.init_from)
    throw InputError("--init-adapters", "needs the base model's weights", "give --init-from PATH");
  if (f.data_type && !f.data) throw InputError("--data-type", "has no meaning without --data", "give --data FILE");
}

TrainingSetup apply_training_flags(const TrainingFlags& f, const ModelGraph& model, const ShardingPlan& plan,
                                   RunOptions& options) {
  TrainingSetup setup;
  setup.rate = learning_rate_of(f, plan, options);
  const std::int64_t steps = std::max(1, options.warmup_steps) + options.steps,
                     last = options.training.steps_done + steps;
  if (f.lr || f.lr_schedule || f.lr_warmup) {
    options.training.learning_rate = setup.rate;
    setup.notes.push_back("learning rate: " + setup.rate.describe());
    if (f.lr && setup.rate.peak != plan.optimizer.lr)
      setup.notes.back() += fmt::format(" (--lr; the plan says {})", plan.optimizer.lr);
    if (setup.rate.kind != Decay::constant && setup.rate.least == 0 && last > setup.rate.total)
      setup.notes.push_back(
          fmt::format("note: the learning rate is 0 from step {} on, and nothing is learnt: give more "
                      "--lr-steps, or --lr-min",
                      std::max(setup.rate.total, options.training.steps_done) + 1));
  }
  if (f.data) {
    const DataType type = f.data_type ? parse_data_type(*f.data_type, "--data-type") : DataType::automatic;
    const TokenFile data(*f.data, "--data", {type, model.vocab, plan.seq_len, plan.seed});
    options.training.tokens = data.reader();
    const auto per_step = static_cast<double>(plan.tokens_per_step() / plan.seq_len);
    setup.notes.push_back(fmt::format("data: {}; {} steps read it {:.3g} times", data.describe(), steps,
                                      per_step * static_cast<double>(steps) / static_cast<double>(data.windows())));
  }
  if (f.init_from) {
    if (options.training.state)
      throw InputError("--init-from", "contradicts a run that goes on from a checkpoint, which has its own weights",
                       "give one of the two");
    InitialWeights weights(*f.init_from, "--init-from", model);
    if (f.init_adapters) weights.add_adapters(*f.init_adapters, "--init-adapters");
    options.training.state = weights.reader(plan.seed);
    setup.notes.push_back("initial weights: " + weights.describe());
  }
  return setup;
}

}  // namespace fsdp::cli
