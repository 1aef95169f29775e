// The constants of NCCL's performance model (2.28.9, src/graph/tuning.cc), one row each. Microseconds and GB/s = 1e9
// B/s, NCCL's units.
#pragma once

#include <array>

namespace fsdp::nccl {

using ByProtocol = std::array<double, 3>;  // LL, LL128, Simple
using ByNodes = std::array<double, 3>;     // one node, two, more

// Rows as NcclAlgorithm: tree, ring, CollNetDirect, CollNetChain, NVLS, NVLSTree, PAT. 0: the protocol does not exist
// there.
inline constexpr std::array<ByProtocol, 7> kBaseLatency = {
    {{6.8, 14, 8.4}, {6.6, 14, 8.4}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {8, 8, 8}}};
inline constexpr std::array<ByProtocol, 7> kNvlinkLatency = {
    {{0.6, 1.25, 4.0}, {0.6, 1.9, 3.4}, {0, 0, 3.7}, {0, 0, 2.8}, {0, 0, 25}, {0, 0, 25}, {0, 0, 4.0}}};
inline constexpr std::array<ByProtocol, 7> kPciLatency = {
    {{1.0, 1.9, 4.0}, {1.0, 2.5, 5.7}, {0, 0, 3.7}, {0, 0, 2.8}, {0, 0, 0}, {0, 0, 0}, {0, 0, 4.0}}};
inline constexpr std::array<ByProtocol, 7> kNetLatency = {
    {{5.0, 8.5, 14}, {2.7, 4.0, 14}, {0, 0, 31}, {0, 0, 30}, {0, 0, 18}, {0, 0, 20.9}, {0, 0, 14}}};
inline constexpr double kNetOverheadAmd = 2.0,
                        kNetOverhead = 1.0;  // per ring step when nodes > 1; three times that for Simple

// Rows: Volta, Ampere, Hopper, Blackwell.
inline constexpr std::array<ByNodes, 4> kLlMaxBus = {{{39, 39, 20.4}, {87.7, 22.5, 19}, {141, 45, 35}, {282, 90, 70}}};
inline constexpr std::array<ByNodes, 4> kRingLl128PerChannel = {
    {{20, 20, 20}, {20, 20, 20}, {36.7, 36.7, 36.7}, {73.4, 34.6, 73.4}}};
inline constexpr std::array<ByNodes, 4> kTreeLl128PerChannel = {
    {{20, 20, 20}, {20, 20, 20}, {36.7, 36.7, 29}, {55.6, 31.67, 20}}};
inline constexpr std::array<ByNodes, 4> kTreePerChannel = {
    {{26.5, 18.5, 10}, {24, 23.6, 17.8}, {38.7, 41.4, 36}, {70, 42.8, 24}}};
inline constexpr std::array<ByNodes, 4> kNvlsTreePerChannel = {
    {{26.5, 18.5, 10}, {24, 23.6, 17.8}, {0, 57.7, 45.5}, {0, 96, 43.8}}};
inline constexpr std::array<double, 4> kNvlsEfficiency = {0, 0, 0.85, 0.74};

// A tree all-reduce reaches this part of its bandwidth at 64 B, 128 B, ... 256 MiB; all of it outside.
inline constexpr std::array<std::array<double, 23>, 3> kTreeBySize = {{
    {1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1},
    {1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1},
    {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9},
}};

}  // namespace fsdp::nccl
