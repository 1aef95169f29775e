// A CSV file of tests/ whole: one map from column to cell per record.
#pragma once

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "simulator/published/reading/csv.h"

namespace fsdp {

using CsvRow = std::map<std::string, std::string>;

// `name`: below tests/, "accuracy/collectives.csv".
inline std::vector<CsvRow> read_csv_rows(const std::string& name) {
  std::ifstream file(std::string(FSDP_TESTS_DIR) + "/" + name, std::ios::binary);
  CsvReader csv(file);
  std::vector<std::string> header;
  std::vector<CsvRow> rows;
  while (csv.next()) {
    REQUIRE(csv.problem().empty());
    if (header.empty()) {
      header = csv.cells();
      continue;
    }
    REQUIRE(csv.cells().size() == header.size());
    CsvRow& row = rows.emplace_back();
    for (std::size_t i = 0; i < header.size(); ++i) row[header[i]] = csv.cells()[i];
  }
  REQUIRE(!rows.empty());
  return rows;
}

}  // namespace fsdp
