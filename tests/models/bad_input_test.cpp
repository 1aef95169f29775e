// Hostile and mistaken files: one clear sentence each, naming file, field and remedy.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <utility>

#include "models/catalog.h"
#include "models/input/error.h"
#include "models/input/json.h"
#include "models/input/shown.h"
#include "tests/support/refusal.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

std::string config_refusal(const std::string& text) {
  return refusal([&] { return model_from_config(text, "config.json"); });
}

// A good config with `key` replaced by `value` (raw JSON), or removed when `value` is empty.
std::string llama(const std::string& key = "", const std::string& value = "") {
  const std::pair<const char*, const char*> fields[] = {
      {"model_type", "\"llama\""},  {"vocab_size", "64"},       {"hidden_size", "32"},
      {"intermediate_size", "48"},  {"num_hidden_layers", "2"}, {"num_attention_heads", "4"},
      {"num_key_value_heads", "2"}, {"rms_norm_eps", "1e-5"},   {"rope_theta", "10000.0"}};
  std::string text = "{", comma;
  bool placed = false;
  for (const auto& [name, usual] : fields) {
    const std::string v = name == key ? value : usual;
    placed = placed || name == key;
    if (!v.empty()) text += std::exchange(comma, ",") + "\"" + name + "\":" + v;
  }
  if (!placed && !key.empty()) text += ",\"" + key + "\":" + value;
  return text + "}";
}

}  // namespace

TEST_CASE("what is shown of a stranger's text is UTF-8 that no terminal acts on") {
  for (const char* kept : {"a\nb", "caf\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x9a\x80", ""}) CHECK(shown(kept) == kept);
  CHECK(shown("\x1b[2J\x7f") == "?[2J?");
  CHECK(shown("a\xc2\x9b"
              "b\xe2\x80\xae") == "a?b?");
  CHECK(shown("\x9b"
              "2J") == "?2J");                  // CSI, where a terminal is told bytes
  CHECK(shown("\xc3\xa9\x9b") == "\xc3\xa9?");  // one byte more than the character has
  CHECK(shown("\xe2\x9b") == "??");             // one byte less
  CHECK(shown("\xe2\x9b[\xff\xc0\x80") == "??[???");
}

TEST_CASE("files that are no JSON are refused with the place") {
  CHECK(config_refusal(llama()).empty());
  CHECK(holds(config_refusal(""), "config.json: the JSON ends too early"));
  CHECK(holds(config_refusal("{\n  \"model_type\": llama\n}"), "not valid JSON at line 2, column 17"));
  CHECK(holds(config_refusal("[1, 2]"), "config.json: is an array; expected an object"));
  CHECK(holds(config_refusal("PK\x03\x04 binary"), "not valid JSON at line 1"));
  CHECK(holds(config_refusal("{\"a\": 1e999}"), "too large"));
  CHECK(holds(config_refusal("{\"a\": \"\xff\xfe\"}"), "not valid JSON"));
  CHECK(holds(config_refusal("{\"vocab_size\": 1, \"vocab_size\": 2}"), "occurs twice"));
  CHECK(holds(config_refusal(llama() + "x"), "not valid JSON"));
  CHECK(holds(config_refusal(std::string(100'000, '[')), "nested deeper than 64 levels"));
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += "{\"a\":";
  CHECK(holds(config_refusal(deep), "nested deeper"));
}

TEST_CASE("a list of layer types that is none of these layers is refused where no layer has a window, too") {
  // As transformers' configurations of these families refuse it.
  for (const char* type : {"llama", "qwen2", "phi3", "granite"}) {
    CAPTURE(type);
    const auto refused = [&](const std::string& types) {
      std::string text = llama("layer_types", types);
      return config_refusal(text.replace(text.find("\"llama\""), 7, "\"" + std::string(type) + "\""));
    };
    CHECK(refused("[\"full_attention\", \"sliding_attention\"]").empty());
    CHECK(refused("null").empty());
    CHECK(holds(refused("[\"full_attention\", \"half_attention\"]"), "layer_types: knows no \"half_attention\""));
    CHECK(holds(refused("[\"full_attention\"]"), "layer_types: lists 1 layers of 2"));
    CHECK(holds(refused("\"full_attention\""), "layer_types"));
  }
}

TEST_CASE("names with control characters, which would act in a terminal or in an emitted script") {
  const std::string good(embedded_file("clusters/p5.json"));
  const auto named = [&](const std::string& name) {
    std::string text = good;
    text.replace(text.find("\"p5\""), 4, "\"" + name + "\"");
    return refusal([&] { return cluster_from_json(text, "c.json"); });
  };
  CHECK(named("p6").empty());
  CHECK(named("two words, \\u00e9").empty());
  CHECK(holds(named("a\\nb"), "c.json: name: \"a?b\" holds a control character"));
  CHECK(holds(named("\\u001b[31mred"), "control character"));
  CHECK(holds(named("\\u007f"), "control character"));
  CHECK(holds(named(""), "c.json: name: is empty"));
}

TEST_CASE("a config cut anywhere is refused") {
  const std::string good(embedded_file("configs/llama3.1-405b.json"));
  const std::size_t end = good.rfind('}');
  for (std::size_t size = 0; size <= end; ++size) {
    CAPTURE(size);
    CHECK(holds(config_refusal(good.substr(0, size)), "config.json: "));
  }
}

TEST_CASE("fields that are missing, of the wrong type or out of range") {
  CHECK(config_refusal(llama("hidden_size", "")) == "config.json: hidden_size: is missing; add it");
  CHECK(config_refusal(llama("model_type", "")).empty());  // the keys are Llama's: catalog_names_test.cpp
  CHECK(config_refusal(llama("hidden_size", "\"32\"")) ==
        "config.json: hidden_size: is a text; expected an integer from 1 to 16777216");
  CHECK(config_refusal(llama("hidden_size", "32.0")) ==
        "config.json: hidden_size: is a fraction; expected an integer from 1 to 16777216");
  for (const char* value : {"0", "-32", "99999999999", "18446744073709551615", "null", "[32]", "true", "1e3"}) {
    for (const char* key :
         {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
      CAPTURE(key);
      CAPTURE(value);
      CHECK(holds(config_refusal(llama(key, value)), std::string("config.json: ") + key + ": "));
    }
  }
  CHECK(holds(config_refusal(llama("hidden_size", "33")), "hidden_size: 33 is not divisible by 4 heads"));
  CHECK(holds(config_refusal(llama("hidden_size", "36")), "head_dim: 9 is odd"));
  CHECK(holds(config_refusal(llama("num_key_value_heads", "3")), "num_key_value_heads: 3 does not divide 4 heads"));
  CHECK(holds(config_refusal(llama("rms_norm_eps", "-1")), "rms_norm_eps"));
  CHECK(holds(config_refusal(llama("rope_theta", "0")), "rope_theta"));
  CHECK(holds(config_refusal(llama("rope_theta", "[]")), "rope_theta: is an array; expected a number"));
  CHECK(
      holds(config_refusal(llama("hidden_act", "\"relu\"")), "hidden_act: \"relu\" is not modelled; only \"silu\" is"));
  CHECK(holds(config_refusal(llama("tie_word_embeddings", "1")), "expected true or false"));
}

TEST_CASE("sizes whose product overflows are refused, not wrapped") {
  std::string huge = llama("num_hidden_layers", "10000");
  const auto put = [&](const std::string& from, const std::string& to) {
    huge.replace(huge.find(from), from.size(), to);
  };
  put("\"intermediate_size\":48", "\"intermediate_size\":16777216");
  put("\"hidden_size\":32", "\"hidden_size\":16777216");
  put("\"vocab_size\":64", "\"vocab_size\":2147483648");
  CHECK(holds(config_refusal(huge),
              "the sizes make more than 281,474,976,710,656 parameters; use fewer layers or smaller widths"));
  Tensor wide{TensorKind::activation, std::int64_t{1} << 40, true};
  CHECK_THROWS_AS((void)elements(wide, Workload{1 << 20, 1 << 20, 2}), InputError);
}

TEST_CASE("other families: what is not modelled is named") {
  const std::string gpt2 =
      R"({"model_type":"gpt2","vocab_size":64,"n_positions":16,"n_embd":32,"n_layer":1,"n_head":4)";
  CHECK(config_refusal(gpt2 + "}").empty());
  CHECK(holds(config_refusal(gpt2 + R"(,"activation_function":"relu"})"),
              "activation_function: \"relu\" is not modelled"));
  CHECK(holds(config_refusal(gpt2 + R"(,"add_cross_attention":true})"), "add_cross_attention"));
  CHECK(holds(
      config_refusal(R"({"model_type":"gpt2","vocab_size":64,"n_positions":16,"n_embd":30,"n_layer":1,"n_head":4})"),
      "not divisible by 4 heads"));
  const std::string mpt =
      R"({"model_type":"mpt","vocab_size":64,"max_seq_len":16,"d_model":32,"n_layers":1,"n_heads":4)";
  CHECK(config_refusal(mpt + "}").empty());
  CHECK(holds(config_refusal(mpt + R"(,"attn_config":{"clip_qkv":6}})"), "attn_config.clip_qkv: is not modelled"));
  CHECK(
      holds(config_refusal(mpt + R"(,"attn_config":{"attn_type":"multiquery_attention"}})"), "attn_config.attn_type"));
  CHECK(holds(config_refusal(mpt + R"(,"attn_config":7})"), "attn_config: is an integer; expected an object"));
  CHECK_THROWS_AS((void)load_model("mpt-7b-bench", -1), InputError);
  CHECK_THROWS_AS((void)load_model("mpt-7b-bench", std::int64_t{1} << 40), InputError);
}

TEST_CASE("a default that contradicts what a config says is named as the default") {
  CHECK(config_refusal(R"({"model_type":"mistral","vocab_size":64,"hidden_size":32,"intermediate_size":48,
                           "num_hidden_layers":1,"num_attention_heads":4})") ==
        "config.json: num_key_value_heads: is missing, and its default, 8, does not divide 4 heads; add it");
}

TEST_CASE("rotary positions need heads of an even size") {
  // GPT-NeoX turns a quarter of each head: 2 channels of 9.
  CHECK(config_refusal(R"({"model_type":"gpt_neox","vocab_size":64,"hidden_size":36,"intermediate_size":48,
                           "num_hidden_layers":1,"num_attention_heads":4})") ==
        "config.json: hidden_size: makes heads of 9 channels; rotary positions need an even number");
}

TEST_CASE("random damage to a config never crashes") {
  std::mt19937 random(11);
  const std::string good(embedded_file("configs/qwen2.5-7b.json"));
  for (int i = 0; i < 1000; ++i) {
    std::string text = good;
    for (unsigned n = 1 + random() % 3; n > 0; --n) text[random() % text.size()] = static_cast<char>(random() % 256);
    CAPTURE(text);
    try {
      check_graph(model_from_config(text, "config.json"), "damaged");
    } catch (const InputError& e) {
      CHECK(std::string(e.what()).size() < 400);
    }
  }
}

TEST_CASE("strict objects: unknown keys, paths, ranges") {
  const JsonDocument d = parse_document(
      R"({"schema":"fsdp-plan/plan/1","units":[{"modules":["a"]},{"modules":[1]}],"seed":18446744073709551615,"n":[1,2.5]})",
      "plan.json", "fsdp-plan/plan/1");
  JsonObject root = d.root();
  CHECK(root.unsigned_integer("seed") == 18446744073709551615ULL);
  const auto units = root.array("units");
  CHECK(units[0].object().texts("modules") == std::vector<std::string>{"a"});
  CHECK(refusal([&] { return units[1].object().texts("modules"); }) ==
        "plan.json: units[1].modules[0]: is an integer; expected a text in quotes");
  CHECK(refusal([&] {
          root.finish();
          return 0;
        }) == "plan.json: n: is not a known key; use one of: schema, seed, units");
  CHECK(refusal([&] { return root.integers("n", 0, 9); }) ==
        "plan.json: n[1]: is a fraction; expected an integer from 0 to 9");
  CHECK(root.numbers("n", 0, 9) == std::vector<double>{1, 2.5});
  CHECK(holds(refusal([&] { return root.numbers("n", 0, 2); }), "n[1]: 2.5 is out of range"));
  CHECK_NOTHROW(root.finish());
  CHECK_FALSE(root.optional_integer("absent", 0, 1));
  CHECK(refusal([] { return parse_document("{}", "p.json", "fsdp-plan/plan/1"); }) ==
        "p.json: schema: is missing; add \"schema\": \"fsdp-plan/plan/1\"");
  CHECK(refusal([] { return parse_document(R"({"schema":"fsdp-plan/costs/1"})", "p.json", "fsdp-plan/plan/1"); }) ==
        "p.json: schema: is \"fsdp-plan/costs/1\"; expected \"fsdp-plan/plan/1\"");
}

TEST_CASE("files that cannot be read are refused with the reason") {
  const auto folder = std::filesystem::temp_directory_path();
  CHECK(holds(refusal([] { return read_file("/no/such/file", "--model"); }),
              "--model: \"/no/such/file\": there is no such file"));
  CHECK(holds(refusal([&] { return read_file(folder.string(), "--model"); }), "not a regular file"));
  CHECK(holds(refusal([] { return read_file("/dev/zero", "--model"); }), "not a regular file"));
  const auto big = folder / ("fsdp-plan-big-" + std::to_string(std::random_device()()));
  { std::ofstream(big) << "x"; }
  std::filesystem::resize_file(big, static_cast<std::uintmax_t>(kMaxJsonBytes) + 1);  // sparse
  CHECK(holds(refusal([&] { return read_file(big.string(), "--model"); }), "larger than 64 MiB"));
  std::filesystem::remove(big);
}

TEST_CASE("configurations of experts that contradict themselves are refused") {
  const auto moe = [](const std::string& type, const std::string& more) {
    return config_refusal("{\"model_type\": \"" + type +
                          R"(", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
      "moe_intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
      "head_dim": 8)" + more +
                          "}");
  };
  const std::string four = R"(, "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2)";
  for (const char* type : {"mixtral", "qwen3_moe", "olmoe"}) CHECK(moe(type, four) == "");
  CHECK(moe("mixtral", "") == "config.json: num_local_experts: is missing; add it");
  CHECK(moe("olmoe", R"(, "num_experts": 4)") == "config.json: num_experts_per_tok: is missing; add it");
  CHECK(holds(moe("mixtral", R"(, "num_local_experts": 0, "num_experts_per_tok": 2)"), "num_local_experts: "));
  CHECK(holds(moe("mixtral", R"(, "num_local_experts": 4, "num_experts_per_tok": 0)"), "num_experts_per_tok: "));
  CHECK(moe("mixtral", R"(, "num_local_experts": 4, "num_experts_per_tok": 5)") ==
        "config.json: num_experts_per_tok: 5 of 4 experts; choose at most as many as there are");
  CHECK(holds(moe("mixtral", R"(, "num_local_experts": 99999999, "num_experts_per_tok": 5)"), "num_local_experts: "));
  for (const char* factor : {"0", "-1", "1e30", "\"2\"", "true"})
    CHECK(holds(moe("mixtral", four + ", \"capacity_factor\": " + factor), "capacity_factor: "));
  CHECK(
      holds(moe("mixtral", four + R"(, "output_router_logits": true)"), "output_router_logits: true is not modelled"));
  CHECK(holds(moe("mixtral", four + R"(, "router_jitter_noise": 0.1)"), "router_jitter_noise: noise is not modelled"));
  CHECK(holds(moe("qwen3_moe", four + R"(, "decoder_sparse_step": 2)"), "decoder_sparse_step: dense layers"));
  CHECK(holds(moe("qwen3_moe", four + R"(, "mlp_only_layers": [1])"), "mlp_only_layers: layers without experts"));
  CHECK(holds(moe("qwen3_moe", four + R"(, "use_sliding_window": true)"), "use_sliding_window: true is not modelled"));
  CHECK(holds(moe("olmoe", four + R"(, "clip_qkv": 8.0)"), "clip_qkv: is not modelled"));
  const std::string routed = R"(, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 2, "topk_group": 1)";
  for (const char* type : {"glm4_moe", "deepseek_v3"}) {
    CHECK(moe(type, routed) == "");
    CHECK(holds(moe(type, ""), "n_routed_experts: is missing"));
    const std::string few = R"(, "n_routed_experts": 8, "num_experts_per_tok": 3)";
    CHECK(moe(type, few + R"(, "n_group": 3, "topk_group": 1)") ==
          "config.json: n_group: 3 groups of 8 experts; groups are of two experts or more, all of one size");
    CHECK(holds(moe(type, few + R"(, "n_group": 8, "topk_group": 1)"), "n_group: 8 groups of 8 experts"));
    CHECK(holds(moe(type, few + R"(, "n_group": 2, "topk_group": 3)"),
                "topk_group: 3 of 2 groups (n_group); choose at most"));
    CHECK(holds(moe(type, few + R"(, "n_group": 4, "topk_group": 1)"),
                "num_experts_per_tok: 3 of the 2 experts in 1 of 4 groups; use a larger topk_group"));
    CHECK(holds(moe(type, routed + R"(, "n_shared_experts": 0)"), "n_shared_experts: "));
    CHECK(holds(moe(type, routed + R"(, "first_k_dense_replace": -1)"), "first_k_dense_replace: "));
    CHECK(holds(moe(type, routed + R"(, "num_local_experts": 4)"), "num_local_experts: 4, and n_routed_experts is 8"));
    CHECK(moe(type, R"(, "num_local_experts": 8, "num_experts_per_tok": 3, "n_group": 2, "topk_group": 1)") == "");
    CHECK(holds(moe(type, routed + R"(, "routed_scaling_factor": 0)"), "routed_scaling_factor: "));
    CHECK(holds(moe(type, routed + R"(, "n_shared_experts": 65537)"), "n_shared_experts: "));
  }
  // DeepSeek-V2 reads groups if topk_method says so.
  const std::string six = R"(, "n_routed_experts": 6, "num_experts_per_tok": 3)";
  CHECK(moe("deepseek_v2", six) == "");
  CHECK(moe("deepseek_v2", six + R"(, "n_group": 4, "topk_group": null, "topk_method": "greedy")") == "");
  const auto limited = [&](const std::string& more) {
    return moe("deepseek_v2", six + R"(, "topk_method": "group_limited_greedy")" + more);
  };
  CHECK(limited(R"(, "n_group": 3, "topk_group": 2)") == "");
  for (const char* none : {"", R"(, "n_group": 3)", R"(, "n_group": 3, "topk_group": null)"})
    CHECK(holds(limited(none), "topk_group: is missing, and group_limited_greedy needs it; add it, or use the method"));
  CHECK(
      holds(limited(R"(, "topk_group": 1)"), "n_group: one group limits nothing; use two or more, or the topk_method"));
  CHECK(holds(moe("deepseek_v2", six + R"(, "topk_method": null)"), "topk_method: \"null\" is none of"));
  CHECK(holds(moe("deepseek_v2", six + R"(, "attention_dropout": 0.1)"), "attention_dropout: is not modelled"));
  CHECK(holds(limited(R"(, "n_group": 4, "topk_group": 2)"), "n_group: 4 groups of 6 experts"));
  CHECK(holds(limited(R"(, "n_group": 3, "topk_group": 1)"), "num_experts_per_tok: 3 of the 2 experts in 1 of 3"));
  CHECK(holds(moe("deepseek_v2", six + R"(, "topk_method": "noaux_tc")"),
              "topk_method: \"noaux_tc\" is none of transformers'; use greedy or group_limited_greedy"));
  CHECK(holds(moe("deepseek_v2", six + R"(, "mlp_bias": true)"), "mlp_bias: true is not modelled"));
  const auto latent = [&](const std::string& more) { return moe("deepseek_v3", routed + more); };
  CHECK(latent(R"(, "q_lora_rank": null)") == "");
  CHECK(holds(latent(R"(, "q_lora_rank": 0)"), "q_lora_rank: "));
  CHECK(holds(latent(R"(, "qk_rope_head_dim": 7)"), "qk_rope_head_dim: 7 is odd; rotary positions need an even one"));
  for (const char* falsy : {"false", "null"})
    CHECK(holds(latent(R"(, "rope_interleave": )" + std::string(falsy)), "rope_interleave: false is not modelled"));
  CHECK(latent(R"(, "qk_nope_head_dim": 127)") == "");
  const auto heads = [&](const std::string& text) {
    return config_refusal(
        R"({"model_type": "deepseek_v3", "vocab_size": 64, "hidden_size": 131072, "intermediate_size": 48,
      "moe_intermediate_size": 24, "num_hidden_layers": 2)" +
        routed + text + "}");
  };
  for (const char* count : {"4", "96", "100"})  // which need not divide the hidden size
    CHECK(heads(fmt::format(R"(, "num_attention_heads": {0}, "num_key_value_heads": {0})", count)) == "");
  CHECK(holds(heads(R"(, "num_attention_heads": 4, "num_key_value_heads": 2)"),
              "num_key_value_heads: 2 of 4 heads; latent attention"));
  CHECK(holds(heads(R"(, "num_attention_heads": 65536, "num_key_value_heads": 65536, "qk_nope_head_dim": 65536)"),
              "num_attention_heads: 65536 heads of keys and values of 65728 channels"));
  CHECK(holds(moe("glm4_moe", routed + R"(, "partial_rotary_factor": 0.4)"), "partial_rotary_factor: turns 3 of 8"));
  CHECK(moe("gpt_oss", four + R"(, "attention_bias": false, "sliding_window": 4)") == "");
  CHECK(holds(moe("gpt_oss", four + R"(, "sliding_window": null)"), "sliding_window: is null: transformers makes"));
  CHECK(holds(moe("gpt_oss", four + R"(, "layer_types": ["full_attention"])"), "layer_types: lists 1 layers of 2"));
  CHECK(holds(moe("gpt_oss", four + R"(, "output_router_logits": true)"), "output_router_logits: true is not"));
  CHECK(holds(moe("gpt_oss", R"(, "num_experts_per_tok": 2)"), "num_local_experts: is missing"));
  CHECK(holds(moe("gpt_oss", four + R"(, "attention_dropout": 0.1)"), "attention_dropout: is not modelled"));
  for (const char* type : {"gpt_oss", "mixtral", "olmoe", "qwen3_moe"})
    CHECK(holds(moe(type, R"(, "num_local_experts": 4, "num_experts": 8, "num_experts_per_tok": 2)"), "leave one of"));
  // 65536 slots of 2^24 for each of 2^36 tokens: no such tensor.
  const ModelGraph wide =
      model_from_config(R"({"model_type": "mixtral", "vocab_size": 64, "hidden_size": 16777216, "intermediate_size": 8,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8, "num_local_experts": 65536, "num_experts_per_tok": 65536})",
                        "c");
  for (const Op& op : wide.ops)
    if (op.kind == OpKind::moe_dispatch)
      CHECK(
          holds(refusal([&] {
                  return elements(wide.tensors[static_cast<std::size_t>(op.outputs[0])], {1, std::int64_t{1} << 36, 2});
                }),
                "overflows"));
}
