#include "simulator/pytorch/trace_events.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "models/input/error.h"

namespace fsdp {
namespace {

constexpr double kMaxMicroseconds = 1e17;  // from 1970: three thousand years
constexpr std::int64_t kMaxElements = std::int64_t{1} << 52;

bool is_kept(const TraceEvent& e, Slices slices) {
  if (slices == Slices::of_host)
    return is_mark(e) || e.category == "cpu_op" || (e.category == "user_annotation" && e.name.starts_with("gloo:"));
  return is_mark(e) || e.category == "kernel" || e.category == "gpu_memcpy" || e.category == "gpu_memset" ||
         e.category == "cuda_runtime" || e.category == "cuda_driver" || e.category == "hip_runtime";
}

// Called by the parser with each part of the text. Path: the root has depth 1, "traceEvents" 2, an event 3, "args" 4.
class TraceReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  TraceReader(std::string_view where, Slices slices) : where_(where), slices_(slices) {}

  TracedEvents take() {
    if (!listed_) refuse("traceEvents", "is missing");
    return std::move(events_);
  }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override { return number(static_cast<double>(value), value); }
  bool number_unsigned(number_unsigned_t value) override {
    return number(static_cast<double>(value), value > INT64_MAX ? -1 : static_cast<std::int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t&) override { return number(value, std::nullopt); }
  bool string(string_t& value) override {
    if (in_event_) {
      if (key_ == "ph") phase_ = value;
      else if (key_ == "cat") event_.category = std::move(value);
      else if (key_ == "name") event_.name = std::move(value);
    } else if (in_args_) {
      if (key_ == "Collective name") event_.collective = std::move(value);
      else if (key_ == "dtype") event_.dtype = std::move(value);
    }
    return true;
  }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    ++depth_;
    if (in_list_ && depth_ == kEventDepth) {
      event_ = {};
      phase_.clear();
      time_ = duration_ = std::nullopt;
      ++count_;
    }
    if (in_list_ && depth_ == kEventDepth + 1) args_open_ = key_ == "args";
    if (depth_ == 2) info_open_ = key_ == "distributedInfo";
    locate();
    return true;
  }
  bool end_object() override {
    if (in_list_ && depth_ == kEventDepth) keep_event();
    if (depth_ == kEventDepth + 1) args_open_ = false;
    if (depth_ == 2) info_open_ = false;
    --depth_;
    locate();
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ == 0) refuse("", "is a list, not an object");
    if (++depth_ == 2 && key_ == "traceEvents") in_list_ = listed_ = true;
    locate();
    return true;
  }
  bool end_array() override {
    if (depth_ == 2) in_list_ = false;
    --depth_;
    locate();
    return true;
  }
  bool key(string_t& value) override {
    key_ = std::move(value);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    refuse("", "is not JSON: byte " + std::to_string(position));
  }

 private:
  static constexpr int kEventDepth = 3;

  void locate() {
    in_event_ = in_list_ && depth_ == kEventDepth;
    in_args_ = in_list_ && args_open_ && depth_ == kEventDepth + 1;
    in_info_ = info_open_ && depth_ == 2;
  }

  [[noreturn]] void refuse(const std::string& field, const std::string& problem) const {
    throw InputError({where_, field}, problem,
                     "give the file that torch.profiler's export_chrome_trace wrote, unpacked (gunzip)");
  }
  bool number(double value, std::optional<std::int64_t> whole) {
    if (in_event_) {
      if (key_ == "ts") time_ = value;
      else if (key_ == "dur") duration_ = value;
      else if (key_ == "pid") event_.process = whole.value_or(-1);
      else if (key_ == "tid") event_.track = whole.value_or(-1);
    } else if (in_args_) {
      if (key_ == "correlation") event_.correlation = whole.value_or(-1);
      else if (key_ == "In msg nelems") event_.elements_in = elements(whole);
      else if (key_ == "Out msg nelems") event_.elements_out = elements(whole);
    } else if (in_info_) {
      if (key_ == "rank") events_.rank = whole;
      else if (key_ == "world_size") events_.ranks = whole;
    }
    return true;
  }
  static std::int64_t elements(std::optional<std::int64_t> whole) {
    return whole && *whole >= 0 && *whole <= kMaxElements ? *whole : -1;
  }
  void keep_event() {
    events_.any = true;
    if (phase_ != "X" || !is_kept(event_, slices_)) return;
    const std::string field = "traceEvents[" + std::to_string(count_ - 1) + "]";
    if (!time_ || !(std::abs(*time_) <= kMaxMicroseconds)) refuse(field + ".ts", "is no time in microseconds");
    if (!duration_ || !(*duration_ >= 0 && *duration_ <= kMaxMicroseconds))
      refuse(field + ".dur", "is no time in microseconds");
    event_.start = *time_;
    event_.duration = *duration_;
    events_.slices.push_back(std::move(event_));
  }

  std::string where_;
  Slices slices_;
  TracedEvents events_;
  TraceEvent event_;
  std::string key_, phase_;
  std::optional<double> time_, duration_;
  std::size_t count_ = 0;
  int depth_ = 0;
  bool in_list_ = false, listed_ = false, args_open_ = false, info_open_ = false;
  bool in_event_ = false, in_args_ = false, in_info_ = false;
};

}  // namespace

bool is_mark(const TraceEvent& e) { return e.category == "user_annotation" && e.name.starts_with("ProfilerStep#"); }

TracedEvents read_trace_events(std::string_view text, std::string_view where, Slices slices) {
  TraceReader reader(where, slices);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  return reader.take();
}

}  // namespace fsdp
