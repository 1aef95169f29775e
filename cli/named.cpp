#include "cli/named.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/field_flags.h"
#include "cli/files.h"
#include "cli/numbers.h"
#include "executor/ranks/processor.h"
#include "models/catalog.h"
#include "models/graph/lora.h"
#include "models/input/error.h"
#include "models/input/limits.h"
#include "models/input/suggest.h"
#include "planner/costs/fitted.h"
#include "planner/tensor/local_model.h"
#include "simulator/predict.h"

namespace fsdp::cli {
namespace {

struct SizeRow {
  const char* flag;
  Text Flags::*text;
  std::optional<std::int64_t> GenericSizes::*size;
  std::int64_t most;
  const char* help;
};
constexpr SizeRow kSizes[] = {
    {"--layers", &Flags::layers, &GenericSizes::layers, kMaxLayers, "transformer blocks"},
    {"--hidden", &Flags::hidden, &GenericSizes::hidden, kMaxWidth, "width of the residual stream"},
    {"--heads", &Flags::heads, &GenericSizes::heads, kMaxHeads, "query heads"},
    {"--kv-heads", &Flags::kv_heads, &GenericSizes::kv_heads, kMaxHeads, "key heads; default: as many"},
    {"--head-dim", &Flags::head_dim, &GenericSizes::head_dim, kMaxHeads, "width of a head; default: hidden over heads"},
    {"--ffn", &Flags::ffn, &GenericSizes::ffn, kMaxWidth, "width of the feed-forward, or of each expert"},
    {"--vocab", &Flags::vocab, &GenericSizes::vocab, kMaxVocab, "rows of the embedding"},
    {"--experts", &Flags::experts, &GenericSizes::experts, kMaxExperts, "experts of each block; default: none"},
    {"--experts-per-token", &Flags::experts_per_token, &GenericSizes::experts_per_token, kMaxExperts,
     "experts that a token is routed to"},
};

GenericSizes sizes_of(const Flags& flags) {
  GenericSizes sizes;
  for (const SizeRow& row : kSizes) {
    const Text& text = flags.*(row.text);
    if (text && *flags.model != kGeneric)
      throw InputError(row.flag, "is a size of --model generic, not of " + *flags.model,
                       "leave it out, or give --model generic");
    sizes.*(row.size) = parse_optional_count(text, row.flag, 1, row.most);
  }
  return sizes;
}

}  // namespace

void add_model_flags(const Command& command, Flags& flags) {
  const Command adapters = command.group("Adapters");
  adapters.option("--lora", flags.lora,
                  "freeze the model and train adapters of this rank, as peft does: 16, or "
                  "rank=16,alpha=32,targets=q_proj+v_proj (default: all-linear); dropout=0.05: of what adapters "
                  "read; base=nf4 or nf4-double: frozen weights of linear layers in 4 bits (QLoRA); prepared: by peft "
                  "for autocast, as trl does where FSDP does not shard (ddp)",
                  "RANK");
  const Command sizes = command.group("Sizes of --model generic");
  for (const SizeRow& row : kSizes) sizes.option(row.flag, flags.*(row.text), row.help, "N");
}

ModelGraph model_from_flags(const Flags& flags, std::int64_t seq_len, Notes notes) {
  if (!flags.model)
    throw InputError("--model", "is missing", "give a catalog name (see `fsdp-plan show model`) or a config.json");
  const GenericSizes sizes = sizes_of(flags);
  ModelGraph model = *flags.model == kGeneric ? generic_model(sizes) : load_model(*flags.model, seq_len);
  if (flags.lora) model = add_lora(std::move(model), parse_lora(*flags.lora, "--lora"), "--lora");
  if (notes == Notes::printed)
    for (const std::string& note : model.notes) print(stderr, fmt::format("note: {}: {}\n", model.name, note));
  return model;
}

ModelSource source_from_flags(const Flags& flags, const ModelGraph& model, std::int64_t seq_len) {
  try {
    const bool generic = *flags.model == kGeneric;
    const ModelSource source{generic ? generic_config(sizes_of(flags)) : load_config(*flags.model),
                             flags.lora.value_or("")};
    if (graph_of(source, seq_len, *flags.model).digest() == model.digest()) return source;
  } catch (const InputError&) {  // changed since `model` was built
  }
  return {};
}

std::string model_details(const Flags& flags) {
  std::string text = flags.lora ? " --lora " + shell_word(*flags.lora) : "";
  for (const SizeRow& row : kSizes)
    if (const Text& value = flags.*(row.text)) text += fmt::format(" {} {}", row.flag, shell_word(*value));
  return text;
}

std::string compilation(const Flags& flags) {
  return std::string(flags.compile      ? " --compile"
                     : flags.no_compile ? " --no-compile"
                                        : "") +
         (flags.async_tensor ? " --async-tensor" : "");
}

FoundFor found_for(const Implementation& i) { return {std::string(i.name), i.compiled, i.async_tensor}; }

const Implementation& named_implementation(const Flags& flags, const ModelGraph& model, const PlanFile* plan, bool host,
                                           Notes notes) {
  if (flags.compile && flags.no_compile)
    throw InputError("--no-compile", "contradicts --compile", "give one of the two");
  const FoundFor* found = !host && plan != nullptr && plan->found_for ? &*plan->found_for : nullptr;
  if (!flags.implementation && found == nullptr) {
    const Implementation& usual = usual_implementation(model, host, flags.compile, "--implementation");
    return flags.async_tensor ? with_async_tensor(usual, "--async-tensor") : usual;
  }
  const std::string file = flags.plan.value_or("plan");
  const Implementation& plain =
      flags.implementation
          ? find_implementation(*flags.implementation, flags.compile, "--implementation")
          : find_implementation(found->implementation, !flags.no_compile && (flags.compile || found->compiled),
                                file + ": found_for");
  const bool async = flags.async_tensor || (!flags.implementation && found->async_tensor && !flags.no_compile);
  const Implementation& now = async ? with_async_tensor(plain, "--async-tensor") : plain;
  if (flags.implementation) {  // else what a plan's rules say of a model that it does not know would come first
    const ModelGraph as_built = differs_in_form(model, now) ? now.own_form(model) : model;
    for (const Op& op : as_built.ops) (void)facts(now, op, {});
  }
  const FoundFor taken = found_for(now);
  if (notes == Notes::printed && found != nullptr && taken != *found)
    print(stderr, fmt::format("note: {} was found for {}; predicted here for {}\n", printable(file),
                              printable(found->text()), taken.text()));
  return now;
}

Costs named_costs(const Flags& flags, const ClusterSpec& cluster, Notes notes) {
  if (flags.costs) {
    const auto read = parse_any_costs(read_file(*flags.costs), *flags.costs);
    if (const auto* fitted = std::get_if<FittedCosts>(&read); fitted && !cluster.host)
      return costs_for(*fitted, cluster);
    if (std::holds_alternative<FittedCosts>(read))
      throw InputError(*flags.costs, "holds constants fitted to GPUs, but the cluster is " + cluster.name,
                       "give the costs that `fsdp-plan calibrate --backend host` measured");
    Costs costs = std::get<Costs>(read);
    if (cluster.host != (costs.platform == "host")) {
      throw InputError(*flags.costs, "holds costs of '" + costs.platform + "', but the cluster is " + cluster.name,
                       "give the costs that were calibrated for it");
    }
    const std::string here = host::processor_name();
    if (notes == Notes::printed && costs.source.starts_with("calibrate --backend host") &&
        costs.source.find(here) == std::string::npos)
      print(stderr, fmt::format("note: {} holds times of another processor ({}); this one is {}\n", *flags.costs,
                                printable(costs.source), here));
    return costs;
  }
  if (cluster.host) {
    throw InputError("--costs", "is missing; the cluster 'host' has no datasheet",
                     "make them with `fsdp-plan calibrate --backend host -o costs.json` and give --costs costs.json");
  }
  return default_costs(cluster);
}

Bytes named_memory_limit(const Flags& flags, const ClusterSpec& cluster) {
  const Bytes usable = cluster.gpu.usable_memory;
  if (flags.memory_limit) {
    for (const auto& [flag, given] : {std::pair{"--headroom", &flags.headroom}, {"--reserve", &flags.reserve}})
      if (*given)
        throw InputError(flag, "and --memory-limit both say what a plan may take of a GPU", "give one of the two");
    const Bytes limit = parse_bytes(*flags.memory_limit, "--memory-limit");
    if (limit == Bytes(0))
      throw InputError("--memory-limit", "is zero", "give the bytes that a GPU may use, such as 76GiB");
    if (limit <= cluster.fixed_memory && cluster.fixed_memory > Bytes(0))
      throw InputError(
          "--memory-limit",
          fmt::format("{} is less than the {} that the CUDA context and communicators take before anything "
                      "is trained",
                      human(limit), human(cluster.fixed_memory)),
          "give what a GPU has for them and the plan, such as 76GiB");
    if (limit > usable)
      throw InputError("--memory-limit",
                       fmt::format("{} is more than the {} that programs can use of the {} of a GPU of {}",
                                   human(limit), human(usable), human(cluster.gpu.memory), cluster.name),
                       "give less, or describe another GPU in a cluster file");
    return limit;
  }
  MemoryBudget budget;
  if (flags.headroom) budget.headroom = parse_percent(*flags.headroom, "--headroom");
  if (budget.headroom >= 1)
    throw InputError("--headroom", "leaves no memory for a plan", "give less than 100%, such as 5%");
  if (flags.reserve) budget.reserve = parse_bytes(*flags.reserve, "--reserve");
  const Bytes limit = memory_limit(cluster, budget);
  if (limit == Bytes(0))
    throw InputError(
        flags.reserve ? "--reserve" : "--headroom",
        fmt::format("leaves nothing of the {} that programs can use of a GPU of {}", human(usable), cluster.name),
        "give less");
  return limit;
}

std::vector<ListedPrice> listed_prices(const std::string& price) {
  std::vector<ListedPrice> list;
  if (price.find('=') == std::string::npos) return {{"", price}};
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = price.find(',', begin);
    const std::string entry = price.substr(begin, end == std::string::npos ? end : end - begin);
    const std::size_t is = entry.rfind('=');
    if (is == std::string::npos || is == 0)
      throw InputError("--price", "'" + printable(entry) + "' is no cluster with its price",
                       "give each as CLUSTER=PRICE, such as dgx-h100=2.1,p4d=1.2");
    list.push_back({entry.substr(0, is), entry.substr(is + 1)});
  }
  return list;
}

Price named_price(const Flags& flags, const ClusterSpec& cluster) {
  if (cluster.host) throw InputError("--price", "the ranks of 'host' are no GPUs, and have no price", "leave it out");
  for (const ListedPrice& listed : listed_prices(*flags.price)) {
    if (!listed.cluster.empty() && listed.cluster != cluster.name && listed.cluster != flags.cluster) continue;
    Price price = parse_price(listed.price, "--price");
    if (price.currency.empty() && cluster.price) price.currency = cluster.price->currency;
    return price;
  }
  throw InputError("--price", "has none for " + cluster.name, "add " + cluster.name + "=PRICE");
}

ClusterSpec named_cluster(const std::string& name, std::int64_t gpus, Notes notes, const char* where) {
  const std::vector<std::string> of_gpus = gpu_names();
  if (std::find(of_gpus.begin(), of_gpus.end(), name) != of_gpus.end())
    throw InputError(where, "'" + name + "' is a GPU, not a cluster",
                     "write a node of 8 with `fsdp-plan show cluster " + name +
                         " --file > mine.json`, correct what it assumes, and give mine.json");
  ClusterSpec cluster = load_cluster(name, gpus);
  if (notes == Notes::printed)
    for (const std::string& line : cluster.assumed) print(stderr, fmt::format("note: {} assumes {}\n", name, line));
  return cluster;
}

}  // namespace fsdp::cli
