#include "cli/named.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/files.h"
#include "cli/numbers.h"
#include "models/catalog.h"
#include "models/graph/lora.h"
#include "models/input/error.h"
#include "models/input/limits.h"

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

}  // namespace

void add_model_flags(const Command& command, Flags& flags) {
  const Command adapters = command.group("Adapters");
  adapters.option("--lora", flags.lora,
                  "freeze the model and train adapters of this rank, as peft does: 16, or "
                  "rank=16,alpha=32,targets=q_proj+v_proj (default: all-linear)",
                  "RANK");
  const Command sizes = command.group("Sizes of --model generic");
  for (const SizeRow& row : kSizes) sizes.option(row.flag, flags.*(row.text), row.help, "N");
}

ModelGraph model_from_flags(const Flags& flags, std::int64_t seq_len, Notes notes) {
  if (!flags.model)
    throw InputError("--model", "is missing", "give a catalog name (see `fsdp-plan show model`) or a config.json");
  const bool generic = *flags.model == kGeneric;
  GenericSizes sizes;
  for (const SizeRow& row : kSizes) {
    const Text& text = flags.*(row.text);
    if (text && !generic)
      throw InputError(row.flag, "is a size of --model generic, not of " + *flags.model,
                       "leave it out, or give --model generic");
    sizes.*(row.size) = parse_optional_count(text, row.flag, 1, row.most);
  }
  ModelGraph model = generic ? generic_model(sizes) : load_model(*flags.model, seq_len);
  if (flags.lora) model = add_lora(std::move(model), parse_lora(*flags.lora, "--lora"), "--lora");
  if (notes == Notes::printed)
    for (const std::string& note : model.notes) print(stderr, fmt::format("note: {}: {}\n", model.name, note));
  return model;
}

std::string sizes_text(const Flags& flags) {
  std::string text = flags.lora ? " --lora " + shell_word(*flags.lora) : "";
  for (const SizeRow& row : kSizes)
    if (const Text& value = flags.*(row.text)) text += fmt::format(" {} {}", row.flag, shell_word(*value));
  return text;
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
