// The order of the rooms, and inside each of its folders: what may include what. A room, and a folder, may always
// include itself.
//
// A header at the top of a room that is the interface of one folder belongs to that folder (kInterfaces); the others
// belong to the room's own top, the ground that its folders stand on. So does a source at the top that is listed beside
// its header: it counts as a folder of its own.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace fsdp {

using Order = std::map<std::string, std::set<std::string>>;

// The rooms, and which others each may include.
inline const Order& rooms() {
  static const Order kRooms = {
      {"models", {}},
      {"planner", {"models"}},
      {"simulator", {"models", "planner"}},
      {"executor", {"models", "planner", "simulator"}},
      {"viz", {"models", "planner", "simulator"}},
      {"cli", {"models", "planner", "simulator", "executor", "viz"}},
      {"tests", {"models", "planner", "simulator", "executor", "viz", "cli"}},
  };
  return kRooms;
}

// Those that the command line stands on: they name settings, never flags.
inline const std::set<std::string>& rooms_below_cli() { return rooms().at("cli"); }

inline const std::map<std::string, std::string>& interfaces() {
  static const std::map<std::string, std::string> kInterfaces = {
      {"models/graph.h", "models/graph"},
      {"models/implementation.h", "models/implementations"},
      {"models/implementation.cpp", "models/implementations"},
      {"models/catalog.h", "models/catalog"},
      {"models/architecture.h", "models/catalog"},
      {"planner/layout.h", "planner/layout"},
      {"planner/wrap.h", "planner/wrap"},
      {"planner/program.h", "planner/program"},
      {"planner/costs.h", "planner/costs"},
      {"planner/lower.h", "planner/lowering"},
      {"planner/job.h", "planner/job"},
      {"planner/module_costs.h", "planner/module_costs"},
      {"planner/module_costs.cpp", "planner/module_costs"},
      {"planner/search.h", "planner/search"},
      {"planner/emit.h", "planner/emit"},
      {"simulator/predict.h", "simulator/predict"},
      {"executor/calibrate.h", "executor/calibrate"},
      {"executor/cuda_backend.h", "executor/cuda"},
      {"executor/mpi_backend.h", "executor/mpi"},
      {"executor/run.h", "executor/training"},
      {"viz/report.h", "viz/report"},
      {"viz/snapshot.h", "viz/snapshot"},
      {"viz/trace.h", "viz/trace"},
      {"viz/viz.h", "viz/terminal"},
  };
  return kInterfaces;
}

inline const Order& inner_order() {
  static const Order kOrder = {
      // models: input < values at the top (units, dtype, cluster, topology, host) < graph < trace, hub, implementations
      // and importers < catalog.
      {"models/input", {}},
      {"models", {"models/input"}},
      {"models/graph", {"models", "models/input"}},
      {"models/trace", {"models", "models/graph", "models/input"}},
      {"models/hub", {"models", "models/graph", "models/input"}},
      {"models/implementations", {"models", "models/graph", "models/input"}},
      {"models/implementations/hf", {"models/graph", "models/implementations"}},
      {"models/implementations/torchtitan", {"models/graph", "models/implementations"}},
      {"models/importers", {"models/graph", "models/input"}},
      {"models/catalog", {"models", "models/graph", "models/importers", "models/input", "models/trace"}},

      // planner: the plan and small values at the top < layout and wrap < the plan's rules, program < costs and
      // lowering, which do not see each other < job, module costs. Search and emit see neither costs nor lowering; a
      // bound on what a search may find sees both.
      {"planner", {}},
      {"planner/layout", {"planner", "planner/tensor"}},
      {"planner/wrap", {"planner"}},
      {"planner/tensor", {"models/graph", "planner"}},
      {"planner/plan", {"planner", "planner/layout", "planner/tensor", "planner/wrap"}},
      {"planner/program", {"planner", "planner/layout"}},
      {"planner/costs", {"planner", "planner/layout", "planner/program"}},
      {"planner/costs/collectives", {"planner/costs"}},
      {"planner/lowering",
       {"planner", "planner/layout", "planner/lowering/step", "planner/lowering/tape", "planner/program",
        "planner/tensor"}},
      {"planner/lowering/step", {"planner", "planner/program"}},
      {"planner/lowering/tape", {"planner", "planner/program"}},
      {"planner/job", {"planner", "planner/lowering", "planner/program", "planner/tensor"}},
      {"planner/module_costs", {"planner/costs", "planner/lowering", "planner/tensor"}},
      {"planner/search", {"planner", "planner/layout", "planner/plan", "planner/tensor", "planner/wrap"}},
      {"planner/bound",
       {"planner/costs", "planner/layout", "planner/lowering", "planner/plan", "planner/program", "planner/search",
        "planner/tensor", "planner/wrap"}},
      {"planner/questions", {"planner", "planner/plan", "planner/search", "planner/wrap"}},
      {"planner/emit", {"planner", "planner/layout", "planner/tensor", "planner/wrap"}},
      {"planner/lint", {"planner", "planner/wrap"}},

      // simulator: records are values; engine and allocator make them, analysis and predict put them together.
      {"simulator/traced", {}},
      {"simulator/records", {"simulator/traced"}},
      {"simulator/allocator", {}},
      {"simulator/goodput", {}},
      {"simulator/engine", {"simulator/records"}},
      {"simulator/analysis", {"simulator/engine", "simulator/records"}},
      {"simulator/doubt", {"simulator/records"}},
      {"simulator/predict",
       {"simulator/allocator", "simulator/analysis", "simulator/doubt", "simulator/engine", "simulator/records"}},
      {"simulator/pytorch", {"simulator/records", "simulator/traced"}},
      {"simulator/published/reading", {}},
      {"simulator/published/software", {"simulator/published/reading"}},
      {"simulator/published",
       {"simulator/allocator", "simulator/analysis", "simulator/engine", "simulator/predict",
        "simulator/published/reading", "simulator/published/software"}},
      {"simulator/published/doubt", {"simulator/doubt", "simulator/published"}},
      {"simulator/published/own",
       {"simulator/analysis", "simulator/engine", "simulator/published", "simulator/records"}},

      // executor: the interface of backends, data, kernels, what backends share, backends; then what a run is made of.
      {"executor", {}},
      {"executor/arithmetic", {}},
      {"executor/data", {"executor", "executor/arithmetic"}},
      {"executor/kernels", {"executor", "executor/arithmetic"}},
      {"executor/kernels/levels", {"executor/kernels"}},
      {"executor/kernels/matmul", {"executor", "executor/arithmetic", "executor/kernels", "executor/kernels/levels"}},
      {"executor/kernels/ops",
       {"executor/arithmetic", "executor/data", "executor/kernels", "executor/kernels/levels",
        "executor/kernels/matmul"}},
      {"executor/ranks/instruments", {"executor"}},
      {"executor/ranks", {"executor", "executor/arithmetic", "executor/kernels"}},
      {"executor/actions", {"executor", "executor/data", "executor/kernels"}},
      {"executor/host", {"executor/actions", "executor/ranks", "executor/ranks/instruments"}},
      {"executor/mpi", {"executor", "executor/host", "executor/ranks", "executor/ranks/instruments"}},
      {"executor/cuda", {"executor", "executor/arithmetic", "executor/kernels", "executor/ranks"}},
      {"executor/cuda/toolkit/kernels",
       {"executor", "executor/actions", "executor/arithmetic", "executor/data", "executor/kernels"}},
      {"executor/cuda/toolkit/kernels/attention", {"executor/arithmetic", "executor/cuda/toolkit/kernels"}},
      {"executor/cuda/toolkit/kernels/matmul", {"executor/cuda", "executor/cuda/toolkit/kernels"}},
      {"executor/cuda/toolkit/kernels/moe",
       {"executor/arithmetic", "executor/cuda/toolkit/kernels", "executor/kernels"}},
      {"executor/cuda/toolkit/device",
       {"executor", "executor/arithmetic", "executor/cuda", "executor/cuda/toolkit/kernels", "executor/mpi",
        "executor/ranks", "executor/ranks/instruments"}},
      {"executor/cuda/toolkit",
       {"executor/cuda", "executor/cuda/toolkit/device", "executor/cuda/toolkit/kernels",
        "executor/cuda/toolkit/kernels/attention", "executor/cuda/toolkit/kernels/matmul"}},
      {"executor/checkpoint", {"executor", "executor/arithmetic", "executor/data", "executor/kernels"}},
      {"executor/training",
       {"executor", "executor/actions", "executor/checkpoint", "executor/kernels", "executor/ranks"}},
      {"executor/calibrate",
       {"executor", "executor/actions", "executor/arithmetic", "executor/kernels", "executor/training"}},

      // viz: what is written by itself < the report, a page; traces; memory snapshots; charts of a terminal.
      {"viz", {}},
      {"viz/report", {"viz"}},
      {"viz/snapshot", {}},
      {"viz/terminal", {"viz"}},
      {"viz/trace", {"viz"}},

      // cli: the terminal (help, completion, width) < flags and files < commands; reports beside the flags. What the
      // doctor looks at starts other processes. Pages are reports too, of a command's whole answer.
      {"cli/terminal", {}},
      {"cli", {"cli/terminal"}},
      {"cli/report", {"cli/terminal"}},
      {"cli/doctor", {"cli", "cli/terminal"}},
      {"cli/pages", {"cli", "cli/report"}},
      {"cli/calibration", {"cli", "cli/terminal"}},
      {"cli/questions", {"cli", "cli/report", "cli/terminal"}},
      {"cli/commands",
       {"cli", "cli/calibration", "cli/doctor", "cli/pages", "cli/questions", "cli/report", "cli/terminal"}},

      // tests: by room; they share support, fakes and the conformance suite.
      {"tests/support", {}},
      {"tests/support/tape", {}},
      {"tests/support/precompiled", {}},
      {"tests/gpu_check", {}},
      {"tests/fuzz", {}},
      {"tests/bench", {}},
      {"tests/fakes/emulated", {}},
      {"tests/fakes/cublaslt_on_host", {}},
      {"tests/fakes/cuda_driver", {}},
      {"tests/fakes/cuda_on_host", {"tests/fakes/emulated"}},
      {"tests/house", {}},
      {"tests/docs", {"tests/house"}},
      {"tests/accuracy", {"tests/support"}},
      {"tests/models", {"tests/support"}},
      {"tests/models/input", {"tests/support"}},
      {"tests/models/torch", {}},
      {"tests/planner", {"tests/support"}},
      {"tests/planner/adapters", {"tests/support"}},
      {"tests/planner/costs", {"tests/support"}},
      {"tests/planner/lint", {"tests/support"}},
      {"tests/planner/emit", {"tests/support"}},
      {"tests/planner/questions", {"tests/support"}},
      {"tests/planner/search", {"tests/support"}},
      {"tests/planner/tape", {"tests/support", "tests/support/tape"}},
      {"tests/planner/torch", {"tests/support", "tests/support/tape"}},
      {"tests/simulator", {"tests/support"}},
      {"tests/simulator/predict", {}},
      {"tests/simulator/pytorch", {"tests/support"}},
      {"tests/simulator/published", {"tests/support", "tests/support/tape"}},
      {"tests/exported", {}},
      {"tests/viz", {"tests/support"}},
      {"tests/cli", {"tests/support"}},
      {"tests/cli/questions", {"tests/cli"}},
      {"tests/executor/conformance", {}},
      {"tests/executor", {"tests/executor/conformance", "tests/support"}},
      {"tests/executor/checkpoint", {"tests/support"}},
      {"tests/executor/data", {"tests/support"}},
      {"tests/executor/kernels", {"tests/support"}},
      {"tests/executor/parity", {"tests/support"}},
      {"tests/executor/mpi", {"tests/executor/conformance", "tests/support"}},
      {"tests/executor/cuda",
       {"tests/executor/conformance", "tests/fakes/emulated", "tests/gpu_check", "tests/support"}},
      {"tests/executor/cuda_on_host", {"tests/executor/conformance", "tests/executor/cuda", "tests/support"}},
  };
  return kOrder;
}

// Includes against the order, each with the reason why it stands. One that no file has any more must leave this list.
struct Exception {
  std::string file, included, reason;
};

inline const std::vector<Exception>& exceptions() {
  static const std::vector<Exception> kExceptions = {
      {"executor/cuda/attention_call.h", "executor/cuda/toolkit/kernels/attention/attention.h",
       "names the kernel's arguments; needs no toolkit"},
  };
  return kExceptions;
}

}  // namespace fsdp
