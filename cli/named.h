// What flags name: --model with the sizes of `--model generic`, --cluster, --implementation and --costs; and what they
// say of a cluster's memory and price.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/options.h"
#include "executor/checkpoint/model_source.h"
#include "models/cluster.h"
#include "models/graph.h"

namespace fsdp::cli {

// --lora, and --layers --hidden ... --experts-per-token. add_setup_flags has them, too.
void add_model_flags(const Command&, Flags&);
// The model of --model, and of its sizes where that is generic, with the adapters of --lora. What its file says beside
// it goes to standard error.
[[nodiscard]] ModelGraph model_from_flags(const Flags&, std::int64_t seq_len, Notes = Notes::printed);
// What `model`, of the same flags, was built from. Empty where its file has changed since.
[[nodiscard]] ModelSource source_from_flags(const Flags&, const ModelGraph& model, std::int64_t seq_len);
// --lora and the sizes, where they are given, as one would type them again, each with a blank before it.
[[nodiscard]] std::string model_details(const Flags&);

// What a plan's file notes of an implementation.
[[nodiscard]] FoundFor found_for(const Implementation&);

// " --compile" or " --no-compile", and " --async-tensor", as they are given, or nothing.
[[nodiscard]] std::string compilation(const Flags&);

// What --implementation and --compile name; else what the file of `plan` says that it was found for, and else the usual
// one. CPU ranks run ours: for them a file has no say. That the flags name another than the file goes to standard
// error.
[[nodiscard]] const Implementation& named_implementation(const Flags&, const ModelGraph&, const PlanFile* plan,
                                                         bool host, Notes = Notes::printed);

// The costs in --costs, or the default ones of the cluster. Costs of another processor than this one are said to be.
[[nodiscard]] Costs named_costs(const Flags&, const ClusterSpec&, Notes = Notes::printed);

// What a plan may take of each GPU: --memory-limit; or else the usable memory less --headroom and --reserve.
[[nodiscard]] Bytes named_memory_limit(const Flags&, const ClusterSpec&);
// --price, which is given: "2.1USD", or that of this cluster in "dgx-h100=2.1,p4d=1.2"; in the currency of the
// cluster's file where the flag names none.
[[nodiscard]] Price named_price(const Flags&, const ClusterSpec&);
// A price of --price, and the cluster's name or file that it is of; empty: it is that of any.
struct ListedPrice {
  std::string cluster, price;
};
[[nodiscard]] std::vector<ListedPrice> listed_prices(const std::string& price);

// As load_cluster. What the cluster's file leaves out goes to standard error, so that no assumption is silent; a GPU's
// name is refused with the command that writes a cluster of such GPUs.
[[nodiscard]] ClusterSpec named_cluster(const std::string& name, std::int64_t gpus = 0, Notes = Notes::printed,
                                        const char* where = "--cluster");

}  // namespace fsdp::cli
