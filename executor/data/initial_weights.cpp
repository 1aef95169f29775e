#include "executor/data/initial_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>

#include "executor/arithmetic/element.h"
#include "executor/data/synthetic.h"
#include "models/hub/adapters.h"
#include "models/hub/tensors.h"
#include "models/input/counted.h"
#include "models/input/error.h"
#include "models/input/json.h"
#include "models/input/suggest.h"

namespace fsdp {
namespace {

// "transformer." or "model.": what the names of the base model's parameters begin with.
std::string base_prefix(const ModelGraph& model) {
  if (model.parameters.empty()) return "";
  const std::string& first = model.parameters.front().name;
  return first.substr(0, first.find('.') + 1);
}

// What transformers once wrote beside parameters; no model reads it back.
bool is_old_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with(".rotary_emb.inv_freq");
}

void add_without_prefix(std::vector<std::string>& names, std::string_view prefix) {
  for (std::size_t i = 0, n = names.size(); i < n; ++i)
    if (!prefix.empty() && names[i].starts_with(prefix)) names.push_back(names[i].substr(prefix.size()));
}

std::string quoted(const std::vector<std::string>& names) {
  std::string text = "\"" + names.front() + "\"";
  return names.size() > 1 ? text + " (nor \"" + names[1] + "\")" : text;
}

// "model.layers.0.mlp.experts.7.w1.weight" -> 7.
std::optional<std::int64_t> expert_index(std::string_view name) {
  constexpr std::string_view kBefore = ".experts.";
  const std::size_t at = name.find(kBefore);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = name.substr(at + kBefore.size());
  std::int64_t index = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), index);
  if (error != std::errc() || end == rest.data() + rest.size() || *end != '.') return std::nullopt;
  return index;
}

std::int64_t most_experts(const ModelGraph& model) {
  std::int64_t most = 0;
  for (const Parameter& p : model.parameters) most = std::max(most, expert_count(model, p));
  return most;
}

// Uniform in (-bound, bound): kaiming_uniform_(a = sqrt(5)) of a matrix with so many columns.
void fill_adapter(std::uint64_t seed, const Parameter& p, std::int64_t first, std::int64_t count, DType type,
                  std::byte* to) {
  const std::uint64_t key = initial_values_of(seed, p).key;
  const double bound = lora_part(p) == LoraPart::down ? 1 / std::sqrt(static_cast<double>(p.shape[1])) : 0;
  with_type(type, [&](auto element) {
    using T = decltype(element);
    T* values = reinterpret_cast<T*>(to);
    for (std::int64_t i = 0; i < count; ++i) {
      const double unit = static_cast<double>(split_mix(key ^ static_cast<std::uint64_t>(first + i)) >> 11) * 0x1p-53;
      store(values[i], static_cast<Math<T>>(bound * (2 * unit - 1)));
    }
  });
}

}  // namespace

InitialWeights::InitialWeights(const std::string& path, std::string_view where, const ModelGraph& model)
    : model_(model), prefix_(base_prefix(model)) {
  WeightFiles files(path, where, "model");
  const bool adapters = std::any_of(files.left().begin(), files.left().end(),
                                    [](const auto& t) { return t.first.find(".lora_") != std::string::npos; });
  for (const Parameter& p : model_.parameters)
    if (adapters || lora_part(p) == LoraPart::none) claim(files, p);
    else parameters_[p.name];
  refuse_left(files);
  describe(path, files, taken_);
}

void InitialWeights::add_adapters(const std::string& path, std::string_view where) {
  if (!has_adapters(model_))
    throw InputError(std::string(where) + ": \"" + printable(path) + "\"", "the model has no adapters",
                     "give it some, of the rank and the layers of these");
  const std::int64_t before = taken_;
  WeightFiles files(path, where, "adapter_model");
  const std::filesystem::path file(files.files().front()->file().path());
  const std::string config = (file.parent_path() / "adapter_config.json").string();
  check_adapter_config(read_file(config, where), config, model_);
  for (const Parameter& p : model_.parameters)
    if (lora_part(p) != LoraPart::none) claim(files, p);
  refuse_left(files);
  describe(path, files, taken_ - before);
}

void InitialWeights::describe(const std::string& path, const WeightFiles& files, std::int64_t tensors) {
  files_.insert(files_.end(), files.files().begin(), files.files().end());
  described_ += fmt::format("{}{}: {} in {}, {}", described_.empty() ? "" : "; ", printable(path),
                            counted(tensors, "tensor"), counted(files.files().size(), "file"), files.types());
}

// Takes the tensors of a parameter out of the files.
void InitialWeights::claim(WeightFiles& files, const Parameter& p) {
  std::vector<std::string> names = {p.name};
  names.insert(names.end(), p.aliases.begin(), p.aliases.end());
  const std::vector<HubTensor> hub = hub_tensors(model_, p);
  const bool experts = expert_count(model_, p) > 0;
  if (!experts && hub[0].name != p.name) names.insert(names.begin(), hub[0].name);
  add_without_prefix(names, prefix_);
  if (claim_whole(files, p, names)) return;
  if (experts && claim_pieces(files, p)) return;
  if (experts) names.insert(names.begin() + 1, hub.front().name);
  throw InputError(files.named(), "has no tensor " + quoted(names), kOtherModel);
}

bool InitialWeights::claim_whole(WeightFiles& files, const Parameter& p, const std::vector<std::string>& names) {
  std::optional<WeightPlace> first;
  for (const std::string& name : names) {
    const std::optional<WeightPlace> here = files.take(name, p.shape);
    if (!here) continue;
    if (first && !same_tensor(*first, *here))
      throw InputError(here->file->file().named(),
                       fmt::format("tensor \"{}\" and \"{}\" differ, but the model has one weight for both", name,
                                   first->tensor->name),
                       kOtherModel);
    if (!first) first = here;
  }
  if (!first) return false;
  parameters_[p.name] = {{*first, 0}};
  ++taken_;
  return true;
}

// Expert by expert. False: none of them is there.
bool InitialWeights::claim_pieces(WeightFiles& files, const Parameter& p) {
  Pieces pieces;
  std::vector<std::string> missing;
  for (const HubTensor& t : hub_tensors(model_, p)) {
    std::vector<std::string> names = {t.name};
    add_without_prefix(names, prefix_);
    std::optional<WeightPlace> here;
    for (const std::string& name : names)
      if (!here) here = files.take(name, t.shape);
    if (here) pieces.push_back({*here, t.begin});
    else if (missing.empty()) missing = std::move(names);
  }
  if (pieces.empty()) return false;
  if (!missing.empty())
    throw InputError(
        files.named(),
        fmt::format("has no tensor {}, but others of the {} experts of {}", quoted(missing), p.shape[0], p.name),
        kOtherModel);
  taken_ += static_cast<std::int64_t>(pieces.size());
  parameters_[p.name] = std::move(pieces);
  return true;
}

void InitialWeights::refuse_left(const WeightFiles& files) const {
  const std::int64_t experts = most_experts(model_);
  for (const auto& [name, place] : files.left()) {
    if (is_old_buffer(name)) continue;
    const std::optional<std::int64_t> expert = experts > 0 ? expert_index(name) : std::nullopt;
    throw InputError(
        place.file->file().named(),
        "tensor \"" + printable(name) + "\" is not one of the model's" +
            (expert && *expert >= experts ? fmt::format(", whose experts are 0 to {}", experts - 1) : std::string()),
        kOtherModel);
  }
}

// Elements [first, first + count) of the parameter.
void InitialWeights::read(const Pieces& pieces, std::int64_t first, std::int64_t count, DType type, std::byte* to) {
  auto piece = std::upper_bound(pieces.begin(), pieces.end(), first,
                                [](std::int64_t at, const Piece& p) { return at < p.begin; });
  for (--piece; count > 0; ++piece) {
    const SafetensorsTensor& tensor = *piece->place.tensor;
    const std::int64_t n = std::min(count, piece->begin + tensor.numel() - first);
    piece->place.file->read(tensor, first - piece->begin, n, type, to);
    to += n * size_of(type);
    first += n;
    count -= n;
  }
}

StateReader InitialWeights::reader(std::uint64_t seed) const {
  return [files = files_, parameters = parameters_, seed](const Parameter& p, StatePart part, const Slab& slab,
                                                          DType type, std::byte* to) {
    if (part != StatePart::parameter) return;
    const auto found = parameters.find(p.name);
    if (found == parameters.end())
      throw MachineError("initial weights are asked of parameter " + p.name + ", which the model did not have");
    const auto dim = static_cast<std::size_t>(slab.dim);
    std::int64_t before = 1, after = 1;  // elements of the dimensions on either side of the sharded one
    for (std::size_t d = 0; d < p.shape.size(); ++d) (d < dim ? before : after) *= d == dim ? 1 : p.shape[d];
    const auto take = [&](std::int64_t first, std::int64_t n) {
      if (found->second.empty()) fill_adapter(seed, p, first, n, type, to);
      else read(found->second, first, n, type, to);
      to += n * size_of(type);
    };
    if (slab.across >= 0) {  // columns of a matrix's rows
      for (std::int64_t r = slab.begin; r < slab.begin + slab.rows; ++r)
        take(r * after + slab.across_begin, slab.across_size);
      return;
    }
    for (std::int64_t i = 0; i < before; ++i) take((i * p.shape[dim] + slab.begin) * after, slab.rows * after);
  };
}

std::string InitialWeights::describe() const { return described_; }

}  // namespace fsdp
