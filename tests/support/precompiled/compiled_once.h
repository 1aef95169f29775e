// What nearly every test includes, read once by the compiler (a precompiled header, tests/CMakeLists.txt), and what
// nearly every test would instantiate of templates: compiled once, in a library that CMake makes of the lines below
// without their first word. Tests are compiled without optimisation, where GCC leaves out what is declared so.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "models/catalog.h"
#include "models/cluster.h"
#include "models/graph.h"
#include "models/implementation.h"
#include "planner/costs.h"
#include "planner/layout.h"
#include "planner/plan.h"
#include "planner/program.h"

extern template class std::basic_string<char>;
extern template class std::vector<std::string>;
extern template class std::vector<bool>;
extern template class std::vector<char>;
extern template class std::vector<int>;
extern template class std::vector<long>;
extern template class std::vector<double>;
extern template class std::vector<fsdp::Module>;
extern template class std::vector<fsdp::Tensor>;
extern template class std::vector<fsdp::Parameter>;
extern template class std::vector<fsdp::Scaled>;
extern template class std::vector<fsdp::Op>;
extern template class std::vector<fsdp::TracedOp>;
extern template class std::vector<fsdp::TracedKind>;
extern template class std::vector<fsdp::TracedEvent>;
extern template class std::vector<fsdp::TracedValue>;
extern template class std::vector<fsdp::TracedProduct>;
extern template class std::vector<fsdp::Unit>;
extern template class std::vector<fsdp::MeshDim>;
extern template class std::vector<fsdp::ShardDim>;
extern template class std::vector<fsdp::ModuleStyle>;
