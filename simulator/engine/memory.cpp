#include "simulator/engine/memory.h"

#include <algorithm>
#include <string>

#include "models/input/error.h"
#include "planner/program/stream_frees.h"

namespace fsdp {
namespace {

[[noreturn]] void broken(const Program& program, const Step& step, std::int32_t op, std::int32_t buffer,
                         const char* what) {
  throw InternalError("broken program: operation " + std::to_string(op) + " (" +
                      std::string(name(step.ops[static_cast<std::size_t>(op)].action)) + ") " + what + " buffer " +
                      std::to_string(buffer) + " (" +
                      std::string(name(program.buffers[static_cast<std::size_t>(buffer)].kind)) + ")");
}

std::int64_t device_bytes(const Buffer& b) { return b.host ? 0 : b.bytes; }

std::int64_t live_bytes(const Program& program, const std::vector<char>& live) {
  std::int64_t bytes = 0;
  for (std::size_t b = 0; b < live.size(); ++b) bytes += live[b] ? device_bytes(program.buffers[b]) : 0;
  return bytes;
}

}  // namespace

MemoryTimeline replay_memory(const Step& step, const Program& program, std::vector<char>& live) {
  MemoryTimeline timeline;
  timeline.points.reserve(step.ops.size());
  std::int64_t bytes = live_bytes(program, live);
  timeline.start = bytes;
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    const Operation& op = step.ops[i];
    const auto index = static_cast<std::int32_t>(i);
    std::int64_t at = bytes;
    const auto allocate = [&](std::int32_t b) {
      if (live[static_cast<std::size_t>(b)]) broken(program, step, index, b, "allocates the live");
      live[static_cast<std::size_t>(b)] = 1;
      bytes += device_bytes(program.buffers[static_cast<std::size_t>(b)]);
      at = std::max(at, bytes);
    };
    const auto release = [&](std::int32_t b) {
      if (!live[static_cast<std::size_t>(b)]) broken(program, step, index, b, "frees the dead");
      live[static_cast<std::size_t>(b)] = 0;
      bytes -= device_bytes(program.buffers[static_cast<std::size_t>(b)]);
    };
    memory_events(step, op, allocate, release);
    timeline.points.push_back({at, bytes});
  }
  return timeline;
}

namespace {

// What the peak, which stands at operation `target` of `step`, is made of, given the buffers live before the step.
void made_of(const Step& step, const Program& program, const std::vector<char>& live, std::int32_t target,
             ProgramMemory& memory) {
  std::array<std::int64_t, kBufferKinds> now{};
  std::int64_t total = 0;
  const auto change = [&](std::int32_t b, int sign) {
    const Buffer& buffer = program.buffers[static_cast<std::size_t>(b)];
    now[static_cast<std::size_t>(buffer.kind)] += sign * device_bytes(buffer);
    total += sign * device_bytes(buffer);
  };
  for (std::size_t b = 0; b < live.size(); ++b)
    if (live[b]) change(static_cast<std::int32_t>(b), 1);
  for (std::int32_t i = 0; i <= target; ++i) {
    const auto allocate = [&](std::int32_t b) {
      change(b, 1);
      if (i == target && total == memory.peak) memory.at_peak = now;
    };
    if (i == target && total == memory.peak) memory.at_peak = now;
    memory_events(step, step.ops[static_cast<std::size_t>(i)], allocate, [&](std::int32_t b) { change(b, -1); });
  }
}

// Most host memory held at once, over all steps.
std::int64_t host_peak(const Program& program) {
  std::int64_t now = 0, peak = 0;
  for (const Step* step : {&program.init, &program.first_step, &program.steady_step}) {
    for (const Operation& op : step->ops) {
      const auto bytes = [&](std::int32_t b) {
        return program.buffers[static_cast<std::size_t>(b)].host ? program.buffers[static_cast<std::size_t>(b)].bytes
                                                                 : 0;
      };
      memory_events(
          *step, op, [&](std::int32_t b) { peak = std::max(peak, now += bytes(b)); },
          [&](std::int32_t b) { now -= bytes(b); });
    }
  }
  return peak;
}

}  // namespace

HeldMemory replay_latest(const Program& program) {
  HeldMemory held;
  std::int64_t bytes = 0;
  const auto size = [&](std::int32_t b) { return device_bytes(program.buffers[static_cast<std::size_t>(b)]); };
  const auto replay = [&](const Step& step) {
    MemoryTimeline timeline;
    timeline.start = bytes;
    timeline.points.resize(step.ops.size());
    std::size_t now = 0;
    latest_memory_events(
        step, program,
        [&](std::size_t i) {
          if (i > 0) timeline.points[i - 1].after = bytes;
          if (i < step.ops.size()) timeline.points[i].at = bytes;
          now = i;
        },
        [&](std::int32_t b) {
          bytes -= size(b);
          if (now < step.ops.size()) timeline.points[now].at = bytes;
        },
        [&](std::int32_t b) {
          bytes += size(b);
          timeline.points[now].at = std::max(timeline.points[now].at, bytes);
        },
        [&](std::int32_t b) { bytes -= size(b); });
    return timeline;
  };
  held.init = replay(program.init);
  held.first_step = replay(program.first_step);
  held.steady_step = replay(program.steady_step);
  return held;
}

ProgramMemory replay_memory(const Program& program) {
  ProgramMemory memory;
  std::vector<char> live(program.buffers.size(), 0);
  std::vector<char> before[3];
  const Step* steps[3] = {&program.init, &program.first_step, &program.steady_step};
  MemoryTimeline* timelines[3] = {&memory.init, &memory.first_step, &memory.steady_step};
  for (int s = 0; s < 3; ++s) {
    before[s] = live;
    *timelines[s] = replay_memory(*steps[s], program, live);
  }
  if (live != before[2])
    throw InternalError("broken program: a steady step does not end with the buffers that it began with");
  for (int s = 0; s < 3; ++s) {
    const auto& points = timelines[s]->points;
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (points[i].at <= memory.peak) continue;
      memory.peak = points[i].at;
      memory.peak_step = s;
      memory.peak_op = static_cast<std::int32_t>(i);
    }
  }
  for (const Buffer& b : program.buffers) {
    if (!b.host) continue;
    memory.host_peak = host_peak(program);
    break;
  }
  if (memory.peak_op) made_of(*steps[memory.peak_step], program, before[memory.peak_step], *memory.peak_op, memory);
  return memory;
}

}  // namespace fsdp
