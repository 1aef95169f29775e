// In place of node_topology.cpp where the build found no pugixml.
#include "models/catalog/node_topology.h"
#include "models/input/error.h"

namespace fsdp {

NodeTopology parse_node_topology(std::string_view, std::string_view where) {
  throw InputError(where, "this build reads no XML",
                   "install pugixml (Debian, Ubuntu: libpugixml-dev) and build again");
}

}  // namespace fsdp
