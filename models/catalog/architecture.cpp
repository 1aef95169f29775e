#include "models/architecture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "models/catalog.h"
#include "models/catalog/names.h"
#include "models/importers/builder.h"
#include "models/input/error.h"
#include "models/input/suggest.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

// Its words, in lower case: "Llama-2-7B LoRA" is llama, 2, 7b, lora.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> out(1);
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)))
      out.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (!out.back().empty()) out.emplace_back();
  }
  return out;
}

struct Word {
  std::string_view word, meaning;
};
constexpr std::string_view kMixture = "a mixture of experts";  // without columns that say which
constexpr std::array kNotModelled{Word{"lora", "adapters on frozen weights"},
                                  Word{"qlora", "adapters on frozen weights"},
                                  Word{"moe", kMixture},
                                  Word{"mixtral", kMixture},
                                  Word{"dbrx", kMixture},
                                  Word{"expert", kMixture},
                                  Word{"olmoe", kMixture},
                                  Word{"bert", "an encoder"},
                                  Word{"roberta", "an encoder"},
                                  Word{"t5", "an encoder and a decoder"},
                                  Word{"vit", "a vision model"},
                                  Word{"mamba", "a state-space model"},
                                  Word{"flux", "a diffusion model"}};

// A form that a model may have: what its config says beside the sizes.
struct Form {
  std::string_view family;
  bool tied;
};

// Sizes with every empty cell filled in.
struct Sizes {
  std::int64_t layers, hidden, heads, kv_heads, ffn, vocab, seq_len, experts, experts_per_token;  // experts 0: none
};

constexpr std::int64_t kQwen3HeadDim = 128;  // whatever the hidden size

Json config_of(const Form& form, const Sizes& s, std::string_view where) {
  Json c;
  c["model_type"] = form.family;
  c["vocab_size"] = s.vocab;
  c["tie_word_embeddings"] = form.tied;
  if (form.family == "mpt") {
    if (s.ffn % s.hidden != 0)
      throw InputError(std::string(where),
                       fmt::format("ffn: {} is no multiple of hidden {}, as MPT has it", s.ffn, s.hidden));
    c.update({{"d_model", s.hidden},
              {"n_layers", s.layers},
              {"n_heads", s.heads},
              {"expansion_ratio", s.ffn / s.hidden},
              {"max_seq_len", s.seq_len},
              {"no_bias", false},
              {"attn_config", {{"alibi", false}}}});
  } else if (form.family == "gpt2") {
    c.update({{"n_embd", s.hidden},
              {"n_layer", s.layers},
              {"n_head", s.heads},
              {"n_inner", s.ffn},
              {"n_positions", s.seq_len},
              {"activation_function", "gelu"}});
  } else {
    c.update({{"hidden_size", s.hidden},
              {"num_hidden_layers", s.layers},
              {"num_attention_heads", s.heads},
              {"num_key_value_heads", s.kv_heads},
              {"intermediate_size", s.ffn},
              {"sliding_window", nullptr}});
    if (s.experts > 0)
      c.update({{"head_dim", kQwen3HeadDim},
                {"moe_intermediate_size", s.ffn},
                {"num_experts", s.experts},
                {"num_experts_per_tok", s.experts_per_token},
                {"norm_topk_prob", true}});
  }
  return c;
}

// Parameters of a form without building it: what its config's matrices, norms and biases add up to. Only to choose
// between forms; the graph counts exactly.
double rough_parameters(const Form& form, const Sizes& s, std::int64_t head_dim) {
  const auto d = static_cast<double>(s.hidden), f = static_cast<double>(s.ffn), v = static_cast<double>(s.vocab);
  const double kv = static_cast<double>(s.kv_heads * head_dim), q = static_cast<double>(s.heads * head_dim);
  const bool gelu = form.family == "mpt" || form.family == "gpt2";
  const double ffns = s.experts > 0 ? static_cast<double>(s.experts) : 1;
  const double block = 2 * d * q + 2 * d * kv + (gelu ? 2 : 3) * ffns * d * f;
  return static_cast<double>(s.layers) * block + v * d * (form.tied ? 1 : 2) +
         (gelu ? static_cast<double>(s.seq_len) * d : 0);
}

// "Llama-3-8B" -> llama; empty: no known family. "GPT 2.7B" is no GPT-2, "GPT-2-like (llama arch)" is a Llama.
std::string_view family_of(const std::vector<std::string>& words) {
  constexpr std::array kFamilies{Word{"mpt", "mpt"},         Word{"mosaicgpt", "mpt"}, Word{"llama", "llama"},
                                 Word{"codellama", "llama"}, Word{"vicuna", "llama"},  Word{"mistral", "mistral"},
                                 Word{"qwen3", "qwen3"},     Word{"qwen", "qwen2"},    Word{"gpt2", "gpt2"}};
  for (const Word& f : kFamilies)
    for (const std::string& word : words)
      if (word.starts_with(f.word) && !(f.word == "gpt2" && word.size() > 4)) return f.meaning;
  for (std::size_t i = 0; i + 1 < words.size(); ++i)
    if (words[i] == "gpt" && words[i + 1] == "2" &&
        (i + 2 == words.size() || !std::isdigit(static_cast<unsigned char>(words[i + 2][0]))))
      return "gpt2";
  return {};
}

// Models that were trained further and keep their sizes.
constexpr std::array kTrainedFurther{Word{"INTELLECT-3", "glm-4.5-air"}};

// Numbers that a table may leave out, from the catalog's model of that name.
std::optional<ModelGraph> from_catalog(const Architecture& a) {
  std::string_view known = a.name;
  for (const Word& w : kTrainedFurther)
    if (plain_name(w.word) == plain_name(a.name)) known = w.meaning;
  for (const std::string& name : model_names())
    if (plain_name(name) == plain_name(known)) return load_model(name, a.seq_len.value_or(0));
  return std::nullopt;
}

// Are these the sizes that the columns have? An empty cell agrees.
bool agrees(const ModelGraph& m, const Architecture& a) {
  const auto none = m.ops.end();
  const auto first = [&](OpKind kind, bool of_experts) {
    return std::find_if(m.ops.begin(), none,
                        [&](const Op& op) { return op.kind == kind && (op.shape.experts.count > 0) == of_experts; });
  };
  const auto expert = first(OpKind::expert_linear, true), dense = first(OpKind::swiglu, false),
             attention = first(OpKind::attention, false), loss = first(OpKind::cross_entropy, false);
  if (expert == none || attention == none || loss == none) return false;
  const std::int64_t blocks =
      std::count_if(m.modules.begin(), m.modules.end(), [](const Module& x) { return x.block; });
  const auto same = [](const std::optional<std::int64_t>& cell, std::int64_t size) { return !cell || *cell == size; };
  return same(a.layers, blocks) && same(a.hidden, expert->shape.in) && same(a.experts, expert->shape.experts.count) &&
         same(a.experts_per_token, expert->shape.experts.top_k) && same(a.moe_ffn, expert->shape.out / 2) &&
         same(a.ffn, dense == none ? expert->shape.out / 2 : dense->shape.width) &&
         same(a.heads, attention->shape.heads) && same(a.kv_heads, attention->shape.kv_heads) &&
         same(a.vocab, loss->shape.vocab);
}

Sizes sizes_of(const Architecture& a, std::string_view family, std::vector<std::string>& said, std::string_view where) {
  Sizes s{};
  s.layers = *a.layers;
  s.hidden = *a.hidden;
  const auto assume = [&](const std::optional<std::int64_t>& cell, std::int64_t value, const std::string& why) {
    if (!cell) said.push_back(why);
    return cell.value_or(value);
  };
  const std::int64_t head_size = s.hidden % 128 == 0 && s.hidden >= 2048 ? 128 : s.hidden % 64 == 0 ? 64 : s.hidden;
  s.heads = assume(a.heads, s.hidden / head_size, fmt::format("heads of size {}", head_size));
  s.kv_heads = a.kv_heads.value_or(s.heads);
  const bool gelu = family == "mpt" || family == "gpt2" || (family.empty() && !a.ffn);
  const std::int64_t third = (8 * s.hidden / 3 + 255) / 256 * 256;  // Llama's 2/3 of 4 hidden, to a multiple of 256
  s.ffn = assume(a.experts ? a.moe_ffn : a.ffn, gelu ? 4 * s.hidden : third,
                 gelu ? "feed-forward of 4 hidden" : "feed-forward of 8/3 hidden");
  s.vocab =
      assume(a.vocab, gelu ? 50304 : 32000, gelu ? "vocabulary of GPT-2, 50,304" : "vocabulary of Llama 2, 32,000");
  s.seq_len = a.seq_len.value_or(2048);
  if (s.hidden > kMaxWidth || s.layers > kMaxLayers)
    throw InputError(std::string(where), "layers or hidden is out of range");
  if (a.experts) {
    if (!a.experts_per_token || !a.moe_ffn)
      throw InputError(std::string(where), "experts: experts_per_token or moe_ffn is missing");
    s.experts = *a.experts, s.experts_per_token = *a.experts_per_token;
  }
  if (s.heads % s.kv_heads != 0)
    throw InputError(std::string(where), fmt::format("kv_heads: {} does not divide {} heads", s.kv_heads, s.heads));
  return s;
}

// Tables state a family's vocabulary, padded or not, while the parameters were counted in the run: where both differ by
// a whole number of embedding rows, the run had that many fewer or more. Empty: they agree, or differ in something
// else.
std::optional<std::int64_t> vocab_of_params(const Architecture& a, const Sizes& s, const Form& form,
                                            std::int64_t counted) {
  constexpr std::int64_t kMostPadding = 512;
  if (!a.params || *a.params == counted) return std::nullopt;
  const std::int64_t row = s.hidden * (form.tied ? 1 : 2), more = *a.params - counted;
  if (more % row != 0) return std::nullopt;
  const std::int64_t vocab = s.vocab + more / row;
  const bool near = a.vocab ? std::abs(more / row) <= kMostPadding : vocab < 1'000'000;
  return near && vocab >= 1000 ? std::optional(vocab) : std::nullopt;
}

std::vector<Form> forms_of(std::string_view family, const Architecture& a) {
  if (family == "mpt") return {{"mpt", true}};
  if (family == "gpt2") return {{"gpt2", true}, {"gpt2", false}};
  if (!family.empty()) return {{family, false}, {family, true}};
  const bool grouped = a.kv_heads && a.heads && *a.kv_heads != *a.heads;
  if (grouped || (a.ffn && *a.ffn < 4 * *a.hidden)) return {{"llama", false}, {"llama", true}};
  return {{"gpt2", true}, {"gpt2", false}, {"llama", false}, {"llama", true}};
}

ArchitectureModel with_name(ArchitectureModel out, const Architecture& a, std::string_view where) {
  out.graph.name = a.name.empty() ? "unnamed" : printable(a.name);
  const auto ours = static_cast<double>(out.graph.parameter_count());
  if (a.params && std::abs(ours / static_cast<double>(*a.params) - 1) > kParameterTolerance)
    throw InputError(std::string(where), fmt::format("params: its columns make {} parameters, not {}",
                                                     human_count(ours), human_count(static_cast<double>(*a.params))));
  return out;
}

}  // namespace

ArchitectureModel model_from_architecture(const Architecture& a, std::string_view where) {
  const std::vector<std::string> words = words_of(a.name);
  for (const Word& n : kNotModelled)
    for (const std::string& word : words)
      if (word.starts_with(n.word) && !(a.experts && n.meaning == kMixture))
        throw InputError(std::string(where),
                         fmt::format("model: \"{}\" is {}, which is not modelled", printable(a.name), n.meaning));
  ArchitectureModel out;
  if (!a.layers || !a.hidden) {
    auto known = from_catalog(a);
    if (!known)
      throw InputError(std::string(where),
                       "layers or hidden is missing, and \"" + printable(a.name) + "\" is no model of the catalog");
    const auto mixed = std::find_if(known->ops.begin(), known->ops.end(),
                                    [](const Op& op) { return op.kind == OpKind::expert_linear; });
    const std::optional<std::int64_t> none, experts = mixed == known->ops.end() ? none : mixed->shape.experts.count,
                                            chosen = mixed == known->ops.end() ? none : mixed->shape.experts.top_k;
    if ((a.experts && a.experts != experts) || (a.experts_per_token && a.experts_per_token != chosen) || a.moe_ffn)
      throw InputError(std::string(where), "experts: with the sizes of the catalog's " + known->name +
                                               ", which are its own; state layers " +
                                               "and hidden, too, or leave the cells of experts empty");
    out.assumptions.push_back("sizes of the catalog's " + known->name);
    out.graph = std::move(*known);
  } else {
    const std::string_view named = family_of(words);
    std::string_view family = named.empty() ? std::string_view(a.family) : named;
    if (a.experts && family != "qwen3") {
      auto known = from_catalog(a);
      if (!known || !agrees(*known, a))
        throw InputError(
            std::string(where),
            fmt::format("experts: {} of \"{}\": only Qwen3's, and those of the catalog's models in their own "
                        "sizes, are modelled here",
                        *a.experts, printable(a.name)));
      out.assumptions.push_back("a model like the catalog's " + known->name);
      out.graph = std::move(*known);
      return with_name(std::move(out), a, where);
    }
    Sizes s = sizes_of(a, family, out.assumptions, where);
    const bool wide = family == "qwen3";
    if (a.experts) family = "qwen3_moe";
    if (!wide && s.hidden % s.heads != 0)
      throw InputError(std::string(where), fmt::format("heads: {} do not divide hidden {}", s.heads, s.hidden));
    const std::int64_t head_dim = wide ? kQwen3HeadDim : s.hidden / s.heads;
    const std::vector<Form> forms = forms_of(family, a);
    Form best = forms[0];
    if (a.params) {
      const auto miss = [&](const Form& f) {
        return std::abs(rough_parameters(f, s, head_dim) / static_cast<double>(*a.params) - 1);
      };
      best = *std::min_element(forms.begin(), forms.end(),
                               [&](const Form& x, const Form& y) { return miss(x) < miss(y) - 1e-3; });
    }
    out.graph = model_from_config(config_of(best, s, where).dump(), where, s.seq_len);
    if (const auto vocab = vocab_of_params(a, s, best, out.graph.parameter_count())) {
      s.vocab = *vocab;
      out.assumptions.push_back(fmt::format("a vocabulary of {}, as the parameters say", with_commas(s.vocab)));
      out.graph = model_from_config(config_of(best, s, where).dump(), where, s.seq_len);
    }
    if (family.empty())
      out.assumptions.push_back(fmt::format("a decoder like {}", best.family == "gpt2" ? "GPT-2" : "Llama"));
    if (best.tied != forms[0].tied) out.assumptions.push_back(best.tied ? "tied embeddings" : "untied embeddings");
  }
  return with_name(std::move(out), a, where);
}

}  // namespace fsdp
