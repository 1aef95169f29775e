#include "simulator/published/software/run_software.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <string_view>

#include "models/implementations/prime_rl.h"
#include "models/input/limits.h"
#include "models/input/suggest.h"
#include "simulator/published/reading/cells.h"
#include "simulator/published/software/mosaic.h"

namespace fsdp {
namespace {

// The first "2024-08", "2024/08" or "202408" of a text; digits on either side make it something else.
std::optional<int> month_in(std::string_view text) {
  const auto digit = [&](std::size_t i) {
    return i < text.size() && std::isdigit(static_cast<unsigned char>(text[i]));
  };
  for (std::size_t i = 0; i + 6 <= text.size(); ++i) {
    if ((i > 0 && std::isalnum(static_cast<unsigned char>(text[i - 1]))) || !digit(i) || !digit(i + 1) ||
        !digit(i + 2) || !digit(i + 3))
      continue;
    const std::size_t m = digit(i + 4) ? i + 4 : i + 5;
    if (m == i + 5 && text[i + 4] != '-' && text[i + 4] != '/') continue;
    if (!digit(m) || !digit(m + 1) || (digit(m + 2) && !(digit(m + 3) && !digit(m + 4)))) continue;
    const int year =
        (text[i] - '0') * 1000 + (text[i + 1] - '0') * 100 + (text[i + 2] - '0') * 10 + (text[i + 3] - '0');
    const int of_year = (text[m] - '0') * 10 + (text[m + 1] - '0');
    if (year >= 2016 && year < 2100 && of_year >= 1 && of_year <= 12) return month(year, of_year);
  }
  return std::nullopt;
}

constexpr std::string_view kDigits = "0123456789";

constexpr int kTorch27 = month(2025, 4);  // with NCCL 2.26 after 2.21
constexpr int kTorch28 = month(2025, 8);
constexpr int kTorch211 = month(2026, 3);

// PyTorch's releases, the month each came out.
struct Release {
  std::string_view name;
  int out;
};
constexpr std::array kReleases{Release{"torch-1.12", month(2022, 6)}, Release{"torch-1.13", month(2022, 10)},
                               Release{"torch-2.0", month(2023, 3)},  Release{"torch-2.1", month(2023, 10)},
                               Release{"torch-2.2", month(2024, 1)},  Release{"torch-2.3", month(2024, 4)},
                               Release{"torch-2.4", month(2024, 7)},  Release{"torch-2.5", month(2024, 10)},
                               Release{"torch-2.6", month(2025, 1)},  Release{"torch-2.7", kTorch27},
                               Release{"torch-2.8", kTorch28},        Release{"torch-2.9", month(2025, 10)},
                               Release{"torch-2.10", month(2026, 1)}, Release{"torch-2.11", kTorch211}};

// "torch-2.1" of "torch-2.1.2" or "torch-2.1+cu121"; other generations ("2024") as they are; lower case.
std::string generation_of(const PublishedRun& run) {
  std::string text = lower_case(run.software_generation);
  if (!text.starts_with("torch-")) return text;
  const std::size_t minor = std::min(text.find('.'), text.size() - 1) + 1;
  return text.substr(0, text.find_first_not_of(kDigits, minor));
}

// Was transformers of the run older than 4.`minor`, which came out in month `out`? "transformers 4.48.1", else by the
// run's date; without either it is taken to be newer.
bool transformers_before(const PublishedRun& run, int minor, int out) {
  constexpr std::string_view kFour = "transformers 4.", kLater = "transformers 5.";
  const std::string text = lower_case(run.software);
  if (says(text, kLater)) return false;
  if (const std::size_t at = text.find(kFour); at != std::string::npos) {
    const std::string digits = text.substr(at + kFour.size(), 2);
    int of_run = 0;
    for (const char c : digits)
      if (std::isdigit(static_cast<unsigned char>(c)) != 0) of_run = 10 * of_run + (c - '0');
    if (of_run >= 10) return of_run < minor;
  }
  const auto dated = month_of(run);
  return dated && *dated < out;
}

// PyTorch 2.12 and later; others of two digits are in the table.
bool since_2_12(std::string_view generation) {
  constexpr std::string_view kTwo = "torch-2.";
  return generation.starts_with(kTwo) && generation.size() >= kTwo.size() + 2 && generation[kTwo.size()] != '0';
}

// torchtitan as it was in a month; since when is in the implementations' own file. What selective checkpointing kept of
// attention depended on its kernel, which depends on the GPU.
std::string_view titan_of(int m, const std::string& gpu) {
  const bool hopper = gpu.starts_with("h"), blackwell = gpu.starts_with("b") || gpu.starts_with("gb");
  if (m < month(2024, 4)) return "torchtitan-2024-03";
  if (m < month(2024, 5)) return "torchtitan-2024-04";
  if (m < month(2024, 7)) return "torchtitan-2024-05";
  if (hopper && m < month(2024, 11)) return "torchtitan-2024-07-hopper";
  if (m < month(2024, 9)) return "torchtitan-2024-07";
  if (m < month(2025, 4)) return "torchtitan-2024";
  if (m < month(2025, 9)) return blackwell && m > month(2025, 5) ? "torchtitan-2025-blackwell" : "torchtitan-2025";
  if (m < month(2025, 10) && !blackwell) return "torchtitan-2025-09";
  if ((hopper || blackwell) && m < month(2025, 12)) return "torchtitan-2025-10";
  if (m < month(2026, 2)) return "torchtitan-2025-12";
  return m < month(2026, 7) ? "torchtitan" : "torchtitan-2026-06";
}

// Rowwise products of January and early February 2025, in the words of its rows.
bool keeps_all_absolutes(std::string_view float8) { return float8 == "rowwise (torchao main before fix)"; }
bool keeps_absolutes(std::string_view float8) {
  return keeps_all_absolutes(float8) || float8 == "rowwise (torchao pr 1629)" ||
         float8 == "rowwise, abs() output saved";
}

// The choice of one row.
class Chooser {
 public:
  Chooser(const PublishedRun& run, Stack stack, int of_month, const RunModel& model)
      : run_(run), stack_(stack), month_(of_month), model_(model) {}

  RunImplementation choose() {
    const bool compiled = compiles();
    if (stack_ == Stack::prime) return prime_rl(compiled);
    if (stack_ == Stack::atorch) return atorch(compiled);
    if (says(run_.source, "llama-recipes") && transformers_before(run_, 32, month(2023, 8)))
      return recipes_of_2023(compiled);
    if (stack_ == Stack::hf && says(run_.source, "torchtune")) return torchtune(compiled);
    if (stack_ == Stack::hf && (says(run_.source, "litgpt") || says(run_.source, "lit-gpt"))) return litgpt(compiled);
    const bool written_out =
        says(run_.attention, "eager") || says(run_.attention, "math") || lower_case(run_.attention) == "torch";
    std::string name = "hf";
    if (stack_ == Stack::hf && model_.experts) name = "hf-4";
    if (stack_ == Stack::modalities) name = "torchtitan";  // plain modules, fused norms, scaled_dot_product_attention
    if (stack_ == Stack::foundry) name = "foundry";
    if (stack_ == Stack::titan) name = titan_of(month_, run_.gpu);
    if (stack_ == Stack::automodel) name = "automodel";
    if (written_out) {
      if (stack_ == Stack::foundry || stack_ == Stack::titan || compiled || name == "hf-4")
        not_modelled("attention", run_.attention);
      name = "hf-eager-attention";
    }
    chosen_.implementation = &find_implementation(name, compiled, "compile");
    if (stack_ == Stack::titan && keeps_absolutes(lower_case(run_.float8)))
      chosen_.implementation = &torchtitan_with_absolutes(keeps_all_absolutes(lower_case(run_.float8)));
    if (stack_ != Stack::titan && older_attention()) take(before_torch_2_11(*chosen_.implementation));
    if (stack_ == Stack::hf) keep_older_casts(compiled);
    const bool of_trainer = stack_ == Stack::hf && says(run_.software, "transformers");
    if (stack_ == Stack::hf && steps_by_foreach(of_trainer)) take(by_foreach(*chosen_.implementation));
    if (of_trainer && transformers_before(run_, 49, month(2025, 2)))
      take(copying_logits(*chosen_.implementation, transformers_before(run_, 46, month(2024, 10))));
    if (stack_ == Stack::hf) set_attention();
    if (stack_ == Stack::hf && !of_trainer) set_loss();
    chosen_.loss_in_model = of_trainer;
    chosen_.reentrant = of_trainer && says(run_.notes, "gradient_checkpointing") &&
                        !says(lower_case(run_.notes), "use_reentrant=false") && !says(run_.software, "transformers 5.");
    if (stack_ == Stack::foundry && !compiled) set_mosaic(run_, generation_of(run_), chosen_);
    if (says_yes(run_.async_tp)) set_async_tensor(compiled);
    chosen_.connects_trees = stack_ == Stack::foundry || released_before(kTorch27);
    return std::move(chosen_);
  }

 private:
  // A row says so, or is of transformers' Trainer, whose default is the fused one since PyTorch 2.8.
  bool steps_by_foreach(bool of_trainer) const {
    const std::string optimizer = lower_case(run_.optimizer);
    if (says(optimizer, "fused")) return false;
    return says(optimizer, "torch default") || (of_trainer && released_before(kTorch28));
  }

  RunImplementation prime_rl(bool compiled) {
    if (!compiled || uses_float8(run_)) not_modelled("compile", run_.compile);
    const std::string kernel = lower_case(run_.attention);
    if (kernel != "flash-attn-2" && kernel != "flash-attn-3") not_modelled("attention", run_.attention);
    if (model_.experts && says(run_.param_dtype, "32"))
      cannot("param_dtype", "experts of prime-rl in fp32 are not modelled");
    chosen_.implementation =
        &prime_rl_implementation(kernel.back() == '3' ? AttentionKernel::flash3 : AttentionKernel::flash2,
                                 model_.rank == 0          ? PrimeRlAdapters::none
                                 : model_.grouped_adapters ? PrimeRlAdapters::grouped
                                                           : PrimeRlAdapters::in_turn,
                                 model_.adapted_experts ? PrimeRlModel::adapted_experts
                                 : model_.experts       ? PrimeRlModel::experts
                                                        : PrimeRlModel::of_transformers);
    return std::move(chosen_);
  }

  // Its example of November 2023 (dlrover commit 3a442b728). The loop keeps the outputs of one step while the next runs
  // forward, and transformers' cache is on: its own checkpointing would turn it off, ATorch's does not.
  RunImplementation atorch(bool compiled) {
    if (compiled) not_modelled("compile", run_.compile);
    if (uses_float8(run_)) not_modelled("float8", run_.float8);
    chosen_.implementation = &hf_2023_cache_implementation();
    chosen_.connects_trees = true;
    chosen_.assumptions.emplace_back(
        "transformers 4.31 and PyTorch 2.1; keys and values of every layer are kept, of two "
        "steps at once, as in the source's script");
    return std::move(chosen_);
  }

  // llama-recipes of July 2023 (llama-cookbook commit e5970e2e): the cache is on, as with ATorch, and attention written
  // out. Its loop kept the outputs of one step while the next ran forward until that commit, its pull request 41.
  RunImplementation recipes_of_2023(bool compiled) {
    if (compiled) not_modelled("compile", run_.compile);
    if (uses_float8(run_)) not_modelled("float8", run_.float8);
    if (lower_case(run_.attention) != "eager") not_modelled("attention", run_.attention);
    const bool dropped = says(run_.notes, "outputs not kept");
    chosen_.implementation = &hf_2023_eager_implementation(dropped ? LoopHolds::loss : LoopHolds::outputs);
    chosen_.connects_trees = true;
    chosen_.assumptions.emplace_back(
        dropped
            ? "transformers 4.31 and PyTorch 2.1; keys and values of every layer are kept until the loss is computed"
            : "transformers 4.31 and PyTorch 2.1; keys and values of every layer are kept, of two steps at once, as "
              "in the source's script");
    return std::move(chosen_);
  }

  // Its own scripts train through Fabric, lightning-thunder's benchmark without it.
  RunImplementation litgpt(bool compiled) {
    const bool benchmark = says(run_.source, "thunder benchmark");
    if (says(run_.attention, "eager") || says(run_.attention, "math")) not_modelled("attention", run_.attention);
    if (compiled && !benchmark) not_modelled("compile", run_.compile);
    const LitGptLoop loop = benchmark                 ? LitGptLoop::benchmark
                            : month_ < month(2024, 1) ? LitGptLoop::fabric_2023
                                                      : LitGptLoop::fabric;
    chosen_.implementation = &litgpt_implementation(loop, compiled);
    keep_older_casts(compiled);
    chosen_.connects_trees = released_before(kTorch27);
    return std::move(chosen_);
  }

  // Its rows are of packed sequences. A loss in chunks is compiled in place.
  RunImplementation torchtune(bool compiled) {
    if (uses_float8(run_)) not_modelled("float8", run_.float8);
    chosen_.implementation = &torchtune_implementation(compiled, says(run_.loss, "chunk"));
    chosen_.connects_trees = released_before(kTorch27);
    return std::move(chosen_);
  }

  // Where something is run again, casts are, too: torchtitan's rows all do.
  void keep_older_casts(bool compiled) {
    if (compiled && uses_float8(run_) && month_ < kTorch27 && says_no(run_.activation_checkpointing))
      take(keeping_float8_casts(*chosen_.implementation, says(run_.float8, "force_recompute_fp8_weight_in_bwd")));
  }

  // A kernel that the row names, in place of what scaled_dot_product_attention takes. TransformerEngine takes cuDNN's
  // on Hopper, and on what came later.
  void set_attention() {
    const std::string cell = lower_case(run_.attention);
    const bool older_gpu = run_.gpu.starts_with("a") || run_.gpu.starts_with("rtx") || run_.gpu.starts_with("v");
    if (says(cell, "flash-attn-2") || says(cell, "sdpa (flash")) set_kernel(AttentionKernel::flash2);
    if (says(cell, "flash-attn-3")) set_kernel(AttentionKernel::flash3);
    if (says(cell, "cudnn") || (says(cell, "transformerengine") && !older_gpu)) set_kernel(AttentionKernel::cudnn);
  }
  void set_kernel(AttentionKernel kernel) {
    Implementation variant = *chosen_.implementation;
    variant.sdpa = kernel;
    take(std::move(variant));
  }
  void take(Implementation variant) {
    chosen_.variant = std::make_shared<const Implementation>(std::move(variant));
    chosen_.implementation = chosen_.variant.get();
  }

  // Of a training loop of its own, which computes the loss eagerly unless its row says otherwise.
  void set_loss() {
    const std::string cell = lower_case(run_.loss);
    if (says(cell, "chunk") || !says(cell, "plain")) return;
    if (says(cell, "bf16 logits")) take(with_loss(*chosen_.implementation, LoopLoss::in_16_bits));
    else if (says(cell, "compiled")) take(with_loss(*chosen_.implementation, LoopLoss::compiled));
  }

  // Of Modalities' rows without a date the month is assumed. PyTorch 2.9 had the attention of 2.11
  // (planner/costs/attention.cpp).
  bool older_attention() const {
    const bool dated = month_of(run_) || stack_ == Stack::modalities;
    return dated && month_ < kTorch211 && generation_of(run_) != "torch-2.9";
  }

  // By the release that the row states, else by its date. Rows without either (Modalities, YaFSDP) are not.
  bool released_before(int m) const {
    const std::string generation = generation_of(run_);
    for (const Release& r : kReleases)
      if (generation == r.name) return r.out < m;
    const auto dated = month_of(run_);
    return dated && *dated < m;
  }

  void set_async_tensor(bool compiled) {
    if (stack_ != Stack::titan || !compiled || run_.tp.value_or(1) == 1)
      cannot("async_tp", "asynchronous tensor parallelism is torchtitan's, of compiled blocks over tensor ranks");
    chosen_.implementation = &with_async_tensor(*chosen_.implementation, "async_tp");
  }

  // "per block" is how torchtitan compiles.
  bool compiles() const {
    const bool yes = says_yes(run_.compile) || says(run_.compile, "block") || says(run_.compile, "torch.compile");
    if (!yes && !says_no(run_.compile))
      cannot("compile", "\"" + printable(run_.compile) + "\" is neither yes, no nor per block");
    return !says_no(run_.compile);
  }

  const PublishedRun& run_;
  Stack stack_;
  int month_;
  RunModel model_;
  RunImplementation chosen_;
};

}  // namespace

Stack stack_of(const PublishedRun& run) {
  const std::string who = run.source + " " + run.software;
  if (says(who, "mosaic") || says(who, "foundry") || says(who, "composer")) return Stack::foundry;
  if (says(who, "modalities")) return Stack::modalities;
  if (says(who, "prime-rl")) return Stack::prime;
  if (says(who, "automodel")) return Stack::automodel;
  if (says(who, "atorch")) return Stack::atorch;
  return says(who, "titan") ? Stack::titan : Stack::hf;
}

bool loops_over_experts(const PublishedRun& run) {
  return stack_of(run) == Stack::hf && says(run.software, "transformers 4.") &&
         transformers_before(run, 51, month(2025, 4));
}

std::optional<Float8Plan> float8_of(const PublishedRun& run) {
  if (!uses_float8(run)) return Float8Plan{};
  if (stack_of(run) == Stack::foundry && says_no(run.compile) && lower_case(run.precision) == "amp_fp8" &&
      says(run.float8, "transformerengine") && !says(run.float8, "mx"))
    return Float8Plan{Float8Recipe::delayed};
  const Stack stack = stack_of(run);
  if ((stack != Stack::titan && stack != Stack::hf) || says_no(run.compile)) return std::nullopt;
  const bool all_gather = says(run.float8, "float8 all-gather");
  if (says(run.float8, "tensorwise"))
    return Float8Plan{Float8Recipe::tensorwise, all_gather, all_gather && says(run.float8, "precomputed scales")};
  const std::string text = lower_case(run.float8);
  if (text == "mxfp8" || text.starts_with("mxfp8 (torchao linear")) return Float8Plan{Float8Recipe::mxfp8};
  if (text.starts_with("rowwise_with_gw_hp")) return Float8Plan{Float8Recipe::rowwise_with_gw_hp};
  if (text == "rowwise" || text == "rowwise (bf16 all-gather)" || keeps_absolutes(text))
    return Float8Plan{Float8Recipe::rowwise};
  return std::nullopt;
}

std::optional<int> month_of(const PublishedRun& run) {
  for (const std::string* text : {&run.software, &run.source_ref, &run.notes})
    if (const auto m = month_in(*text)) return m;
  const std::string generation = generation_of(run);
  for (const Release& r : kReleases)
    if (generation == r.name) return r.out;
  if (generation.size() == 4 && generation.find_first_not_of(kDigits) == std::string::npos)
    return month(std::stoi(generation), 7);
  if (since_2_12(generation)) return kTorch211 + 1;
  return std::nullopt;
}

bool uses_float8(const PublishedRun& run) { return !says_no(run.float8); }

RunImplementation implementation_of(const PublishedRun& run, Stack stack, int of_month, const RunModel& model) {
  return Chooser(run, stack, of_month, model).choose();
}

int host_threads_of(const PublishedRun& run, std::vector<std::string>& assumptions) {
  constexpr std::string_view kSetting = "OMP_NUM_THREADS=";  // of its launcher, in the notes
  int threads = 0;
  if (const std::size_t at = run.notes.find(kSetting); at != std::string::npos) {
    std::from_chars(run.notes.data() + at + kSetting.size(), run.notes.data() + run.notes.size(), threads);
    if (!kHostThreads.holds(threads)) cannot("notes", "after OMP_NUM_THREADS= a number from 1 to 1,024 is expected");
  } else if (says(run.source, "torchtune")) {
    threads = 12;  // set_torch_num_threads, of 96 processors with 8 GPUs; two are enough for a node's memory
    assumptions.emplace_back(
        "12 threads of each rank for what is offloaded: its share of a node's cores, which torchtune's recipe takes");
  } else if (run.gpus_per_node != 1) {
    assumptions.emplace_back("one thread of each rank for what is offloaded, as torchrun starts them");
  }
  return threads;
}

void set_release(const RunImplementation& software, const ModelGraph& model, ShardingPlan& plan, ClusterSpec& cluster) {
  cluster.fixed_memory += software.kernels_loaded;
  if (software.connects_trees) {  // as much as rings take (models/topology.h)
    cluster.fixed_memory += cluster.communicator_memory;
    cluster.communicator_memory += cluster.communicator_memory;
  }
  if (software.reduces_as_computed) plan.reduce_dtype = plan.param_dtype;
  plan.loop.loss_in_model = software.loss_in_model;
  if (software.torch == TorchVersion{}) {
    plan.reentrant = software.reentrant && plan.dialect == Dialect::fsdp1 && !plan.checkpointed.empty();
    return;
  }
  ShardingPlan then = plan;
  then.torch = software.torch;
  then.use_orig_params = !then.torch.before(2, 0);
  try {
    check(then, model, "plan");
  } catch (const InputError&) {
    return;
  }
  plan = std::move(then);
}

}  // namespace fsdp
