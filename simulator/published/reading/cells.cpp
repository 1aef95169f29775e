#include "simulator/published/reading/cells.h"

#include <algorithm>
#include <cctype>

#include "models/input/error.h"
#include "models/input/suggest.h"

namespace fsdp {

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}
std::string without_remark(std::string_view cell) {
  return lower_case(cell.substr(0, std::min(cell.find(" ("), cell.size())));
}
bool says(std::string_view cell, std::string_view word) { return lower_case(cell).find(word) != std::string::npos; }
bool says_no(std::string_view cell) {
  const std::string c = lower_case(cell);
  return c.empty() || c == "no" || c == "none" || c == "false" || c == "off" || c == "disabled" || c == "0" ||
         c.starts_with("no ");
}

bool says_yes(std::string_view cell) {
  const std::string c = lower_case(cell);
  return c == "yes" || c == "true" || c == "on" || c == "1" || c.starts_with("yes ");
}

int digit(std::string_view column, std::string_view cell) {
  if (cell.size() != 1 || std::isdigit(static_cast<unsigned char>(cell[0])) == 0) not_modelled(column, cell);
  return cell[0] - '0';
}

void cannot(std::string_view column, const std::string& why) { throw InputError(std::string(column), why); }
void not_modelled(std::string_view column, std::string_view cell) {
  cannot(column, "\"" + printable(cell) + "\" is not modelled");
}

}  // namespace fsdp
