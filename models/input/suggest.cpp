#include "models/input/suggest.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "models/input/shown.h"

namespace fsdp {
namespace {

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t change = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = std::exchange(row[j + 1], std::min({change, row[j] + 1, row[j + 1] + 1}));
    }
  }
  return row[b.size()];
}

}  // namespace

std::vector<std::string> nearest(std::string_view name, const std::vector<std::string>& names, std::size_t at_most) {
  if (name.size() > 80) return {};
  const std::string given = lower_case(name);
  struct Found {
    std::size_t distance, same;  // letters that both begin with
    std::string name;
  };
  std::vector<Found> found;
  for (const std::string& candidate : names) {
    const std::string other = lower_case(candidate);
    const bool part = given.size() >= 3 && other.find(given) != std::string::npos;
    std::size_t distance = part ? 1 : edit_distance(given, other);
    // A word may be meant as the first part of a name: "h101" as "h100-sxm-80". Not where that is a name itself.
    const std::string first = other.substr(0, other.find('-'));
    if (first.size() >= 3 && given.find('-') == std::string::npos &&
        std::find(names.begin(), names.end(), first) == names.end())
      distance = std::min(distance, 1 + edit_distance(given, first));
    if (distance <= std::max<std::size_t>(2, candidate.size() / 3)) {
      const auto differ = std::mismatch(given.begin(), given.end(), other.begin(), other.end()).first;
      found.push_back({distance, static_cast<std::size_t>(differ - given.begin()), candidate});
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return a.distance != b.distance ? a.distance < b.distance : a.same > b.same;
  });
  std::vector<std::string> out;
  for (std::size_t i = 0; i < found.size() && i < at_most; ++i) out.push_back(found[i].name);
  return out;
}

std::string suggestion(std::string_view name, const std::vector<std::string>& names) {
  const std::vector<std::string> near = nearest(name, names);
  if (near.empty()) return "use one of: " + join(names);
  std::string out = "did you mean ";
  for (std::size_t i = 0; i < near.size(); ++i) {
    if (i > 0) out += i + 1 == near.size() ? " or " : ", ";
    out += "\"" + near[i] + "\"";
  }
  return out + "?";
}

std::string join(const std::vector<std::string>& names, std::string_view separator) {
  std::string out;
  for (const std::string& n : names) {
    if (!out.empty()) out += separator;
    out += n;
  }
  return out;
}

std::string printable(std::string_view text) {
  std::string out = shown(text.substr(0, 80));
  std::replace(out.begin(), out.end(), '\n', '?');
  return text.size() > 80 ? out + "..." : out;
}

}  // namespace fsdp
