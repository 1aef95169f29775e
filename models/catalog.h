// Models, clusters and GPUs by name or file. `fsdp-plan show model` and `show cluster` print what these return.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/cluster.h"
#include "models/graph.h"

namespace fsdp {

struct NodeTopology;

// `spec`: a catalog name ("llama3-8b"), a Hugging Face config.json, or a folder that holds one. Throws InputError:
// unknown name (with the nearest ones), unreadable or malformed file, unknown model_type (with the list of those
// known), impossible sizes. `seq_len` matters to families with learned positions sized by the run (mpt benchmark
// variants); 0: the config's own.
[[nodiscard]] ModelGraph load_model(std::string_view spec, std::int64_t seq_len = 0);
// The text of the config.json that load_model reads.
[[nodiscard]] std::string load_config(std::string_view spec);

// The same from the text of a config.json; `where` names it in errors.
[[nodiscard]] ModelGraph model_from_config(std::string_view json_text, std::string_view where,
                                           std::int64_t seq_len = 0);

// A model from its sizes alone, called "generic": a decoder as Llama's, or with experts as Mixtral's, whose
// feed-forward `ffn` then is one expert's. Throws InputError(setting("layers"), ...) for a size that is missing or
// impossible.
struct GenericSizes {
  std::optional<std::int64_t> layers, hidden, heads, kv_heads, head_dim, ffn, vocab, experts, experts_per_token;
  bool tied = false;
};
inline constexpr std::string_view kGeneric = "generic";
[[nodiscard]] ModelGraph generic_model(const GenericSizes&);
// The config.json that it is built from.
[[nodiscard]] std::string generic_config(const GenericSizes&);

// `spec`: a catalog name, "host" (this computer's cores as ranks) or a cluster JSON file. `gpus` 0: one node. Nodes
// that the file states are the most that `gpus` may be.
[[nodiscard]] ClusterSpec load_cluster(std::string_view spec, std::int64_t gpus = 0);
[[nodiscard]] ClusterSpec cluster_from_json(std::string_view json_text, std::string_view where, std::int64_t gpus = 0);
// A file to start from for a cluster of one's own, with its GPU written out: that of a catalog cluster, or for a GPU of
// the catalog that of a node of eight, in which every assumed number says so. Throws InputError for "host" and unknown
// names.
[[nodiscard]] std::string cluster_file(std::string_view name);
// The same for a node that NCCL has described (models/catalog/node_topology.h): links, processors and network cards are
// its own; what it does not state is that of the catalog's GPU `gpu_name`. Throws InputError where the two contradict
// each other, and where rings of the links cannot be counted.
[[nodiscard]] std::string cluster_file(std::string_view gpu_name, const NodeTopology&, const std::string& where);
[[nodiscard]] GpuSpec load_gpu(std::string_view name, const Origin& where);

[[nodiscard]] std::vector<std::string> model_names();
[[nodiscard]] std::vector<std::string> cluster_names();
[[nodiscard]] std::vector<std::string> gpu_names();
[[nodiscard]] std::vector<std::string> model_families();  // the model_type values that model_from_config knows

// The embedded file, e.g. embedded_file("configs/llama3-8b.json"); empty if there is none.
[[nodiscard]] std::string_view embedded_file(std::string_view path);

}  // namespace fsdp
