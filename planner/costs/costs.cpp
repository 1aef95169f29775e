// The Costs value on disk, "fsdp-plan/costs/1", and what demands are made from. Times in seconds, rates per second,
// curves as [size, seconds] pairs.
#include "planner/costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "models/input/digest.h"
#include "models/input/error.h"
#include "models/input/json.h"
#include "models/input/names.h"
#include "models/topology.h"
#include "planner/costs/curve.h"
#include "planner/costs/slowest.h"
#include "planner/plan.h"

namespace fsdp {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kSchema = "fsdp-plan/costs/1";
constexpr double kMinFactor = 0.01, kMaxFactor = 100;
constexpr double kMaxSeconds = 1e6, kMaxSize = 1e24;
constexpr double kMinRate = 1e3, kMaxRate = 1e21;  // per second: below any machine, above any
constexpr double kMinFraction = 1e-4;
constexpr std::array<const char*, 3> kMatmuls = {"forward", "backward_input", "backward_weight"};

constexpr std::string_view label(CollectiveVariant v) {
  switch (v) {
    case CollectiveVariant::nccl: return "nccl";
    case CollectiveVariant::symmetric_memory: return "symmetric-memory";
    case CollectiveVariant::copy_engine: return "copy-engine";
  }
  return {};
}
static_assert(names_all<CollectiveVariant>(label, kCollectiveVariants));

constexpr std::string_view label(CollectiveKind k) {
  switch (k) {
    case CollectiveKind::all_gather: return "all_gather";
    case CollectiveKind::reduce_scatter: return "reduce_scatter";
    case CollectiveKind::all_reduce: return "all_reduce";
  }
  return {};
}
static_assert(names_all<CollectiveKind>(label, kCollectiveKinds));

// --- writing

Json json_of(const KernelRate& r) {
  return {
      {"overhead_s", r.overhead.count()}, {"flops_per_s", r.flops_rate.count()}, {"bytes_per_s", r.byte_rate.count()}};
}

Json json_of(const std::vector<CurvePoint>& curve) {
  Json points = Json::array();
  for (const CurvePoint& p : curve) points.push_back({p.size, p.seconds});
  return points;
}

Json json_of(const std::vector<CollectiveCurve>& curves) {
  Json rows = Json::array();
  for (const CollectiveCurve& c : curves)
    rows.push_back({{"collective", name(c.kind)},
                    {"ranks", c.ranks},
                    {"ranks_per_node", c.ranks_per_node},
                    {"seconds", json_of(c.points)}});
  return rows;
}

Json json_of_kernels(const std::vector<KernelRate>& kernels) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    if (kernels[i] == KernelRate{}) continue;
    Json row = {{"op", name(static_cast<OpKind>(i / 2))}, {"direction", i % 2 ? "backward" : "forward"}};
    row.update(json_of(kernels[i]));
    rows.push_back(row);
  }
  return rows;
}

// --- reading

// 0 where nothing was measured.
double rate(JsonObject& o, std::string_view key) {
  const double value = o.number(key, 0, kMaxRate);
  if (value != 0 && value < kMinRate)
    o.refuse(key, fmt::format("{} per second is slower than any machine", value),
             "calibrate again; 0 stands for what was not measured");
  return value;
}

KernelRate kernel_rate(JsonObject& o) {
  return {Seconds(o.number("overhead_s", 0, kMaxSeconds)), FlopsPerSecond(rate(o, "flops_per_s")),
          BytesPerSecond(rate(o, "bytes_per_s"))};
}

KernelRate kernel_rate(JsonObject& root, std::string_view key) {
  JsonObject o = root.object(key);
  const KernelRate r = kernel_rate(o);
  o.finish();
  return r;
}

std::vector<CurvePoint> curve(JsonObject& parent, std::string_view key) {
  std::vector<CurvePoint> points;
  if (!parent.has(key)) return points;
  for (const JsonValue& item : parent.array(key)) {
    const std::vector<double> pair = item.numbers(0, kMaxSize);
    if (pair.size() != 2) item.refuse("expected a pair [size, seconds]");
    if (pair[1] > kMaxSeconds) item.refuse("takes longer than 1e6 seconds", "calibrate again");
    points.push_back({pair[0], pair[1]});
  }
  check_curve(points, parent.where(key));
  return points;
}

std::size_t kernel_index(JsonObject& row) {
  const std::string op = row.text("op"), direction = row.text("direction");
  if (direction != "forward" && direction != "backward")
    row.refuse("direction", "'" + direction + "' is no direction", "use forward or backward");
  for (int k = 0; k < kOpKinds; ++k)
    if (name(static_cast<OpKind>(k)) == op) return static_cast<std::size_t>(2 * k + (direction == "backward" ? 1 : 0));
  row.refuse("op", "'" + op + "' is no kind of op", "calibrate again with this version");
}

std::vector<KernelRate> kernels(JsonObject& root) {
  std::vector<KernelRate> rates;
  if (!root.has("kernels")) return rates;
  rates.resize(2 * kOpKinds);
  for (const JsonValue& item : root.array("kernels")) {
    JsonObject row = item.object();
    KernelRate& rate = rates[kernel_index(row)];
    if (!(rate == KernelRate{})) item.refuse("this op and direction occur twice", "remove one");
    rate = kernel_rate(row);
    row.finish();
  }
  return rates;
}

double fraction(JsonObject& root, std::string_view key) {
  const double value = root.number(key, 0, 1);
  if (value <= 0) root.refuse(key, "must be more than 0", "use a fraction such as 0.75");
  if (value < kMinFraction) root.refuse(key, "is less than any machine reaches", "use a fraction such as 0.75");
  return value;
}

void read_curves(JsonObject& root, Costs& c) {
  if (auto matmul = root.optional_object("matmul")) {
    for (std::size_t i = 0; i < kMatmuls.size(); ++i) c.matmul_curve[i] = curve(*matmul, kMatmuls[i]);
    if (auto beyond = matmul->optional_object("beyond_cube_bytes_per_s")) {
      for (std::size_t i = 0; i < kMatmuls.size(); ++i)
        if (const double beyond_cube = rate(*beyond, kMatmuls[i]); beyond_cube > 0)
          c.matmul_beyond_cube[i] = BytesPerSecond(beyond_cube);
      beyond->finish();
    }
    matmul->finish();
  }
  c.all_gather = curve(root, "all_gather");
  c.reduce_scatter = curve(root, "reduce_scatter");
  c.all_reduce = curve(root, "all_reduce");
  if (const std::int64_t ranks = root.integer("collective_ranks", 0, 1 << 24); ranks > 0) c.collective_ranks = ranks;
  if (auto threads = root.optional_object("threads")) {  // hosts only
    HostThreads t;
    t.wake = Seconds(threads->number("wake_s", 0, 10));
    t.wake_beside = Seconds(threads->number("wake_beside_s", 0, 10));
    t.collective_beside = Seconds(threads->number("collective_beside_s", 0, 10));
    t.skew = Seconds(threads->number("skew_s", 0, 10));
    t.skew_share = threads->number("skew_share", 0, 10);
    t.skew_most = Seconds(threads->number("skew_most_s", 0, 100));
    t.cores = threads->integer("cores", 0, 1 << 24);
    threads->finish();
    if (t.cores > 0) c.threads = t;
  }
  if (c.collective_ranks.value_or(0) < 2 && !(c.all_gather.empty() && c.reduce_scatter.empty() && c.all_reduce.empty()))
    root.refuse("collective_ranks", "curves of collectives need the number of ranks they were measured on, at least 2");
}

CollectiveCurve collective_curve(JsonObject& row) {
  CollectiveCurve c;
  const std::string kind = row.text("collective");
  const auto known = find_name<CollectiveKind>(label, kCollectiveKinds, kind);
  if (!known) row.refuse("collective", "is not known", "use all_gather, reduce_scatter or all_reduce");
  c.kind = *known;
  c.ranks = row.integer("ranks", 2, 1 << 24);
  c.ranks_per_node = row.integer("ranks_per_node", 1, c.ranks);
  c.points = curve(row, "seconds");
  if (c.points.empty()) row.refuse("seconds", "is empty", "leave the curve out");
  return c;
}

// Keys that files of earlier versions have not.
void read_collectives(JsonObject& root, Costs& c) {
  if (root.has("fabric_efficiency")) c.fabric_efficiency = fraction(root, "fabric_efficiency");
  if (root.has("fabric_efficiency_at_scale"))
    c.fabric_efficiency_at_scale = fraction(root, "fabric_efficiency_at_scale");
  c.collective_skew = Seconds(root.optional_number("collective_skew_s", 0, 1).value_or(0));
  if (root.has("collective_beside")) c.collective_beside = fraction(root, "collective_beside");
  c.pessimistic_collectives = root.optional_boolean("pessimistic_collectives").value_or(false);
  c.gpu_spread = root.optional_number("gpu_spread", 0, 1).value_or(c.gpu_spread);
  c.step_jitter = root.optional_number("step_jitter", 0, 1).value_or(c.step_jitter);
  if (const auto variant = root.optional_text("collective_variant")) {
    const auto known = find_name<CollectiveVariant>(label, kCollectiveVariants, *variant);
    if (!known) root.refuse("collective_variant", "is not known", "use nccl, symmetric-memory or copy-engine");
    c.collective_variant = *known;
  }
  if (!root.has("collective_curves")) return;
  for (const JsonValue& item : root.array("collective_curves")) {
    JsonObject row = item.object();
    CollectiveCurve curve = collective_curve(row);
    for (const CollectiveCurve& other : c.collective_curves)
      if (other.kind == curve.kind && other.ranks == curve.ranks && other.ranks_per_node == curve.ranks_per_node)
        item.refuse("this collective and group occur twice", "remove one");
    c.collective_curves.push_back(std::move(curve));
    row.finish();
  }
}

}  // namespace

namespace {

// Of the rings over shards and over replicas those with fewest channels: they go between nodes, and last longest.
double taken_by_rings(const ShardingPlan& plan, const ClusterSpec& cluster) {
  double fewest = 0;
  for (const Communicator comm : {Communicator::shard, Communicator::replicate}) {
    const CollectiveCall call = call_shape(comm, plan, cluster);
    if (cluster.host || call.ranks <= 1 || call.ranks_per_node < 1) continue;
    const std::int64_t nodes = (call.ranks + call.ranks_per_node - 1) / call.ranks_per_node;
    const auto ctas = static_cast<double>(ring_channels(cluster, call.ranks_per_node, nodes).ctas);
    fewest = fewest > 0 ? std::min(fewest, ctas) : ctas;
  }
  return fewest;
}

}  // namespace

CostContext::CostContext(const ModelGraph& m, const ShardingPlan& p, const Implementation& i, const ClusterSpec& on,
                         const Costs& c)
    : model(m),
      plan(p),
      implementation(i),
      cluster(on),
      costs(c),
      slowest(on.host ? 1 : slowest_clock(p.ranks(), c)),
      taken(taken_by_rings(p, on)) {}

std::string_view name(CollectiveKind kind) { return label(kind); }

std::string to_json_text(const Costs& c) {
  Json j = {{"schema", kSchema},
            {"platform", c.platform},
            {"source", c.source},
            {"matmul_efficiency", c.matmul_efficiency},
            {"fp8_matmul_efficiency", c.fp8_matmul_efficiency},
            {"attention_forward_efficiency", c.attention_forward_efficiency},
            {"attention_backward_efficiency", c.attention_backward_efficiency},
            {"memory_efficiency", c.memory_efficiency},
            {"sustained_clock", c.sustained_clock},
            {"host_scale", c.host_scale},
            {"kernel_overhead_s", c.kernel_overhead.count()},
            {"host_per_operation_s", c.host_per_operation.count()}};
  if (c.measured_dtype) j["measured_dtype"] = name(*c.measured_dtype);
  if (!c.kernels.empty()) j["kernels"] = json_of_kernels(c.kernels);
  for (std::size_t i = 0; i < kMatmuls.size(); ++i) j["matmul"][kMatmuls[i]] = json_of(c.matmul_curve[i]);
  for (std::size_t i = 0; i < kMatmuls.size(); ++i)
    if (!c.matmul_curve[i].empty())
      j["matmul"]["beyond_cube_bytes_per_s"][kMatmuls[i]] = c.matmul_beyond_cube[i].value_or(BytesPerSecond(0)).count();
  j["copy"] = json_of(c.copy);
  j["cast"] = json_of(c.cast);
  j["optimizer"] = json_of(c.optimizer);
  j["norm"] = json_of(c.norm);
  j["all_gather"] = json_of(c.all_gather);
  j["reduce_scatter"] = json_of(c.reduce_scatter);
  j["all_reduce"] = json_of(c.all_reduce);
  j["collective_ranks"] = c.collective_ranks.value_or(0);
  if (c.threads)
    j["threads"] = {{"cores", c.threads->cores},
                    {"wake_s", c.threads->wake.count()},
                    {"wake_beside_s", c.threads->wake_beside.count()},
                    {"collective_beside_s", c.threads->collective_beside.count()},
                    {"skew_s", c.threads->skew.count()},
                    {"skew_share", c.threads->skew_share},
                    {"skew_most_s", c.threads->skew_most.count()}};
  j["fabric_efficiency"] = c.fabric_efficiency;
  j["fabric_efficiency_at_scale"] = c.fabric_efficiency_at_scale;
  j["collective_skew_s"] = c.collective_skew.count();
  j["pessimistic_collectives"] = c.pessimistic_collectives;
  if (c.collective_beside != 1) j["collective_beside"] = c.collective_beside;
  j["collective_variant"] = label(c.collective_variant);
  if (!c.collective_curves.empty()) j["collective_curves"] = json_of(c.collective_curves);
  j["gpu_spread"] = c.gpu_spread;
  j["step_jitter"] = c.step_jitter;
  return j.dump(1) + "\n";
}

Costs parse_costs(std::string_view json_text, std::string_view where) {
  const JsonDocument document = parse_document(json_text, where, kSchema);
  JsonObject root = document.root();
  Costs c;
  c.platform = root.text("platform");
  c.source = root.text("source");
  c.matmul_efficiency = fraction(root, "matmul_efficiency");
  c.attention_forward_efficiency = fraction(root, "attention_forward_efficiency");
  c.attention_backward_efficiency = fraction(root, "attention_backward_efficiency");
  c.memory_efficiency = fraction(root, "memory_efficiency");
  // Keys that files of earlier versions have not.
  if (root.has("fp8_matmul_efficiency")) c.fp8_matmul_efficiency = fraction(root, "fp8_matmul_efficiency");
  if (root.has("sustained_clock")) c.sustained_clock = root.number("sustained_clock", kMinFactor, kMaxFactor);
  if (root.has("host_scale")) c.host_scale = root.number("host_scale", kMinFactor, kMaxFactor);
  c.kernel_overhead = Seconds(root.number("kernel_overhead_s", 0, kMaxSeconds));
  c.host_per_operation = Seconds(root.number("host_per_operation_s", 0, kMaxSeconds));
  if (const auto dtype = root.optional_text("measured_dtype"))
    c.measured_dtype = parse_dtype(*dtype, root.where("measured_dtype"));
  if (c.measured_dtype == DType::i64)
    root.refuse("measured_dtype", "int64 is no dtype of products", "use fp64, fp32, bf16 or fp16, or leave it out");
  c.kernels = kernels(root);
  c.copy = kernel_rate(root, "copy");
  c.cast = kernel_rate(root, "cast");
  c.optimizer = kernel_rate(root, "optimizer");
  c.norm = kernel_rate(root, "norm");
  read_curves(root, c);
  read_collectives(root, c);
  root.finish();
  return c;
}

std::string digest(const Costs& c) { return digest_of(to_json_text(c)); }

}  // namespace fsdp
