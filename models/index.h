// Ids are signed in records and files, where -1 can be told from an id; containers are indexed by std::size_t.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fsdp {

// `id` as an index of a container. The id must not be negative.
[[nodiscard]] constexpr std::size_t at(std::int64_t id) { return static_cast<std::size_t>(id); }

}  // namespace fsdp
