#include <nlohmann/json.hpp>

#include "simulator/published/pairs.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json json_of(const AccuracyRow& r) {
  Json j{{"id", r.id},
         {"source", r.source},
         {"trust", r.trust},
         {"gpu", r.gpu},
         {"model", r.model},
         {"gpus", r.gpus},
         {"measured_step_time_s", or_null(r.measured_step_time_s)},
         {"predicted_step_time_s", or_null(r.predicted_step_time_s)},
         {"measured_peak_bytes", or_null(r.measured_peak_bytes)},
         {"predicted_peak_bytes", or_null(r.predicted_peak_bytes)}};
  j["memory_kind"] = r.measured_peak_bytes ? Json(name(r.memory_kind)) : Json(nullptr);
  j["implementation"] = r.implementation;
  j["fabric_assumed"] = r.fabric_assumed;
  j["exposed_share"] = or_null(r.exposed_share);
  if (r.predicted_total_bytes)
    j["predicted_total_bytes"] = *r.predicted_total_bytes, j["device_bytes"] = r.device_bytes;
  j["assumptions"] = r.assumptions;
  return j;
}

Json json_of(const FailedRun& r) {
  Json j{{"id", r.id}, {"trust", r.trust}, {"gpu", r.gpu}, {"model", r.model}, {"gpus", r.gpus}};
  j["predicted_total_bytes"] = or_null(r.predicted_total_bytes);
  if (!r.predicted_total_bytes) return j["reason"] = r.reason, j;
  j["device_bytes"] = r.device_bytes;
  j["predicted_not_to_fit"] = r.predicted_not_to_fit();
  return j;
}

Json json_of(const ErrorSummary& s) {
  if (s.rows == 0) return {{"rows", 0}};
  return {{"rows", s.rows},         {"mean_abs_error", s.mean},   {"median_abs_error", s.median},
          {"p90_abs_error", s.p90}, {"worst_abs_error", s.worst}, {"worst_id", s.worst_id},
          {"bias", s.bias}};
}

Json json_of(const AccuracyGroup& g) {
  return {{"by", g.by}, {"name", g.name}, {"step_time", json_of(g.step_time)}, {"peak_memory", json_of(g.peak)}};
}

Json json_of(const RankAgreement& r) {
  Json j{{"groups", r.groups}, {"pairs", r.pairs}};
  j["tau"] = r.pairs > 0 ? Json(r.tau) : Json(nullptr);
  j["mean_tau"] = r.pairs > 0 ? Json(r.mean_tau) : Json(nullptr);
  return j;
}

Json json_of(const RunPair& p) {
  return {{"knob", p.knob},
          {"from", p.from},
          {"to", p.to},
          {"from_rows", p.from_rows},
          {"to_rows", p.to_rows},
          {"source", p.source},
          {"trust", p.trust},
          {"gpu", p.gpu},
          {"model", p.model},
          {"gpus", p.gpus},
          {"measured_difference", p.measured},
          {"predicted_difference", p.predicted},
          {"error", p.error()},
          {"sign_right", p.sign_right()}};
}

Json json_of(const PairGroup& g) {
  return {{"name", g.name},
          {"difference", json_of(g.error)},
          {"clear", g.clear},
          {"clear_with_the_right_sign", g.sign_right}};
}

Json json_of(const AccuracyReport& report) {
  Json j{{"schema", "fsdp-plan/accuracy/1"}};
  j["rows"] = Json::array();
  for (const AccuracyRow& r : report.rows) j["rows"].push_back(json_of(r));
  if (!report.ignored_columns.empty()) j["ignored_columns"] = report.ignored_columns;
  j["skipped"] = Json::array();
  for (const RefusedRow& r : report.skipped) j["skipped"].push_back({{"id", r.id}, {"reason", r.reason}});
  j["failed_for_memory"] = Json::array();
  for (const FailedRun& r : report.failed) j["failed_for_memory"].push_back(json_of(r));
  const AccuracySummary& s = report.summary;
  Json& sum = j["summary"];
  sum = {{"headline", json_of(s.headline)}, {"all", json_of(s.all)}, {"free_constants", s.free_constants}};
  sum["kendall_tau"] = {{"all", json_of(s.order)}, {"headline", json_of(s.headline_order)}};
  sum["rows"] = report.rows.size();
  sum["skipped"] = report.skipped.size();
  sum["repeated_ids"] = s.repeated_ids;
  sum["groups"] = Json::array();
  for (const AccuracyGroup& g : s.groups) sum["groups"].push_back(json_of(g));
  return j;
}

std::string text_of(const Json& j) {
  return j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";  // cells may be cut inside a character
}

}  // namespace

std::string to_json_text(const AccuracyReport& report) { return text_of(json_of(report)); }

std::string to_json_text(const AccuracyReport& report, const PairReport& pairs) {
  Json j = json_of(report);
  Json& out = j["pairs"] = {{"least_clear_difference", kClearDifference}};
  out["groups"] = Json::array();
  for (const PairGroup& g : pairs.groups) out["groups"].push_back(json_of(g));
  out["pairs"] = Json::array();
  for (const RunPair& p : pairs.pairs) out["pairs"].push_back(json_of(p));
  return text_of(j);
}

}  // namespace fsdp
