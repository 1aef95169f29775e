// The page: its source with style sheets, scripts and the packed data in their places.
#include <zlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/input/error.h"
#include "viz/report.h"
#include "viz/report/page_source.h"
#include "viz/text.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

std::string_view source_of(std::string_view file) {
  for (const EmbeddedFile& f : page_source())
    if (f.path == file) return f.text;
  throw InternalError("the page has no file " + std::string(file));
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t three = 0;
    for (std::size_t k = 0; k < 3; ++k)
      three = three << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    for (std::size_t k = 0; k < 4; ++k) out += i + k <= bytes.size() ? kDigits[three >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

// The zlib format, which browsers call "deflate".
std::string compressed(std::string_view text) {
  uLongf size = compressBound(static_cast<uLong>(text.size()));
  std::string out(size, '\0');
  const int code = compress2(reinterpret_cast<Bytef*>(out.data()), &size, reinterpret_cast<const Bytef*>(text.data()),
                             static_cast<uLong>(text.size()), Z_DEFAULT_COMPRESSION);
  if (code != Z_OK) throw InternalError("zlib could not compress the report");
  out.resize(size);
  return out;
}

// Base64 holds no '<', so nothing in it ends the element.
std::string data_element(const std::string& id, std::string_view json) {
  return "<script type=\"text/plain\" id=\"" + id + "\">" + base64(compressed(json)) + "</script>\n";
}

void replace_once(std::string& page, std::string_view mark, std::string_view with) {
  const std::size_t place = page.find(mark);
  if (place == std::string::npos) throw InternalError("the page has no place for " + std::string(mark));
  page.replace(place, mark.size(), with);
}

// <link rel="stylesheet" href="X"> and <script src="X"></script> become what they name.
void inline_files(std::string& page, std::string_view before, std::string_view after, std::string_view open,
                  std::string_view close) {
  for (std::size_t place = page.find(before); place != std::string::npos; place = page.find(before, place)) {
    const std::size_t name = place + before.size(), end = page.find(after, name);
    const std::string text = std::string(open) + "\n" +
                             std::string(source_of(std::string_view(page).substr(name, end - name))) +
                             std::string(close);
    page.replace(place, end + after.size() - place, text);
    place += text.size();
  }
}

Json json_of(const std::string& text) { return text.empty() ? Json(nullptr) : Json::parse(text); }

std::string document_of(const ReportPage& page) {
  Json steps = Json::array();
  for (const ReportStep& step : page.steps) steps.push_back(step.name);
  Json json = {{"schema", "fsdp-plan/report/1"}, {"command", page.command}, {"title", page.title},
               {"verdict", page.verdict},        {"details", page.details}, {"command_line", page.command_line},
               {"version", page.version},        {"steps", steps},          {"answer", json_of(page.answer)}};
  for (const auto& [name, text] : page.documents) json[name] = json_of(text);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string report_html(const ReportPage& page) {
  std::string html(source_of("report.html"));
  inline_files(html, "<link rel=\"stylesheet\" href=\"", "\">", "<style>", "</style>");
  inline_files(html, "<script src=\"", "\"></script>", "<script>", "</script>");
  std::string data = data_element("report", document_of(page));
  for (std::size_t i = 0; i < page.steps.size(); ++i)
    data += data_element("step-" + std::to_string(i), page.steps[i].columns);
  replace_once(html, "<!-- title -->", markup_text(page.title));
  replace_once(html, "<!-- verdict -->", markup_text(page.verdict));
  replace_once(html, "<!-- data -->\n", data);
  return html;
}

}  // namespace fsdp
