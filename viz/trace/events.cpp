#include "viz/trace/events.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

namespace fsdp {
namespace {

std::string quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Microseconds, exactly.
std::string microseconds(std::int64_t ns) {
  const std::int64_t size = ns < 0 ? -ns : ns;
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", size / 1000, size % 1000);
}

}  // namespace

void TraceEvents::begin(std::string_view phase, TraceTrack on) {
  fmt::format_to(std::back_inserter(text_), "{}{{\"ph\":\"{}\",\"pid\":{},\"tid\":{}", text_.empty() ? "" : ",\n",
                 phase, on.process, on.track);
}

void TraceEvents::slice(TraceTrack on, std::string_view name, std::string_view category, std::int64_t start,
                        std::int64_t end, std::string_view arguments) {
  begin("X", on);
  fmt::format_to(std::back_inserter(text_), ",\"name\":{},\"cat\":{},\"ts\":{},\"dur\":{},\"args\":{{{}}}}}",
                 quoted(name), quoted(category), microseconds(start), microseconds(end - start), arguments);
}

void TraceEvents::arrow_out(TraceTrack on, std::int64_t id, std::int64_t at) {
  begin("s", on);
  fmt::format_to(std::back_inserter(text_), ",\"name\":\"waits\",\"cat\":\"wait\",\"id\":{},\"ts\":{}}}", id,
                 microseconds(at));
}

void TraceEvents::arrow_in(TraceTrack on, std::int64_t id, std::int64_t at) {
  begin("f", on);
  fmt::format_to(std::back_inserter(text_), ",\"name\":\"waits\",\"cat\":\"wait\",\"bp\":\"e\",\"id\":{},\"ts\":{}}}",
                 id, microseconds(at));
}

void TraceEvents::counter(int process, std::string_view name, std::int64_t at, std::int64_t bytes) {
  begin("C", {process, process});
  fmt::format_to(std::back_inserter(text_), ",\"name\":{},\"ts\":{},\"args\":{{\"bytes\":{}}}}}", quoted(name),
                 microseconds(at), bytes);
}

void TraceEvents::mark(int process, std::string_view text, std::int64_t at) {
  begin("i", {process, process});
  fmt::format_to(std::back_inserter(text_), ",\"s\":\"p\",\"name\":{},\"ts\":{}}}", quoted(text), microseconds(at));
}

void TraceEvents::name_process(int process, std::string_view name) {
  begin("M", {process, process});
  fmt::format_to(std::back_inserter(text_), ",\"name\":\"process_name\",\"args\":{{\"name\":{}}}}}", quoted(name));
}

void TraceEvents::name_track(TraceTrack on, std::string_view name) {
  begin("M", on);
  fmt::format_to(std::back_inserter(text_), ",\"name\":\"thread_name\",\"args\":{{\"name\":{}}}}}", quoted(name));
  begin("M", on);
  fmt::format_to(std::back_inserter(text_), ",\"name\":\"thread_sort_index\",\"args\":{{\"sort_index\":{}}}}}",
                 on.track);
}

std::string TraceEvents::document() && {
  return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + std::move(text_) + "\n]}\n";
}

}  // namespace fsdp
