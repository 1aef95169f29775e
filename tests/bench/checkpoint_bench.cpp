// Saving and loading a checkpoint against the disk's plain write (and fsync) and read of the same bytes by as many
// threads, in turns.
//
//   checkpoint_bench [MODEL [RANKS [ROUNDS [FOLDER]]]]         gpt2, 2, 3, the current folder (about 1.5 GB per round,
//                                                              removed again)
//
// Reads come from the disk as far as the system lets files out of its cache (posix_fadvise).
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "executor/checkpoint/checkpoint.h"
#include "executor/checkpoint/folder.h"
#include "executor/checkpoint/pieces.h"
#include "executor/checkpoint/save.h"
#include "models/catalog.h"
#include "planner/layout.h"
#include "planner/plan/naive_plan.h"

namespace {

using namespace fsdp;
namespace fs = std::filesystem;

struct Rank {
  std::vector<std::vector<std::byte>> buffers;  // by unit and part
  std::vector<Piece> pieces;
  std::int64_t bytes = 0;
};

double seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void on_threads(std::size_t n, const std::function<void(std::size_t)>& body) {
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < n; ++i) threads.emplace_back(body, i);
  for (std::thread& t : threads) t.join();
}

void require(bool holds, const char* what) {
  if (holds) return;
  std::perror(what);
  std::exit(3);
}

void plain_write(const std::string& path, const Rank& rank) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  require(file >= 0, "open");
  for (const Piece& p : rank.pieces) {
    const std::byte* from =
        rank.buffers[static_cast<std::size_t>(p.unit) * 3 + static_cast<std::size_t>(p.part)].data() + p.offset;
    for (std::int64_t done = 0; done < p.bytes;) {
      const ssize_t n = ::write(file, from + done, static_cast<std::size_t>(p.bytes - done));
      require(n > 0, "write");
      done += n;
    }
  }
  require(::fsync(file) == 0, "fsync");
  ::close(file);
}

void plain_read(const std::string& path, std::vector<std::byte>& to) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  require(file >= 0, "open");
  std::int64_t at = 0;
  while (true) {
    const ssize_t n =
        ::pread(file, to.data() + at,
                std::min<std::size_t>(std::size_t{8} << 20U, to.size() - static_cast<std::size_t>(at)), at);
    require(n >= 0, "pread");
    if (n == 0 || static_cast<std::size_t>(at += n) == to.size()) break;
  }
  ::close(file);
}

void drop_from_cache(const std::string& folder) {
  for (const auto& e : fs::recursive_directory_iterator(folder)) {
    if (!e.is_regular_file()) continue;
    const int file = ::open(e.path().c_str(), O_RDONLY | O_CLOEXEC);
    require(file >= 0, "open");
    ::fsync(file);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

void say(const char* what, std::int64_t bytes, double ours, double plain) {
  fmt::print("{:<5} checkpoint {:7.0f} MB/s   plain {:7.0f} MB/s   {:.0f}%\n", what,
             static_cast<double>(bytes) / ours / 1e6, static_cast<double>(bytes) / plain / 1e6, 100 * plain / ours);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const ModelGraph model = load_model(argc > 1 ? argv[1] : "gpt2");
  PlanOptions options;
  options.ranks = argc > 2 ? std::atoi(argv[2]) : 2;
  options.seq_len = 128;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 3;
  const std::string folder = fmt::format("{}/checkpoint_bench_{}", argc > 4 ? argv[4] : ".", ::getpid());
  const ShardingPlan plan = naive_plan(model, options);
  const std::vector<UnitLayout> layouts = unit_layouts(plan, model);
  std::vector<Rank> ranks(static_cast<std::size_t>(plan.ranks()));
  std::int64_t all = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].pieces = pieces_to_write(model, plan, layouts, static_cast<std::int64_t>(r));
    for (const UnitLayout& l : layouts)
      for (int part = 0; part < 3; ++part)
        ranks[r].buffers.emplace_back(static_cast<std::size_t>(l.shard_elements * size_of(plan.master_dtype)),
                                      std::byte{static_cast<unsigned char>(r + 1)});
    for (const Piece& p : ranks[r].pieces) ranks[r].bytes += p.bytes;
    all += ranks[r].bytes;
  }
  fmt::print("{}: {:.0f} MB in {} files of {} ranks\n", model.name, static_cast<double>(all) / 1e6, ranks.size(),
             ranks.size());
  const auto backend = make_host_backend({plan.replicate(), plan.shard()}, {600});
  SaveOptions save;
  save.directory = folder + "/ckpt";
  for (int round = 1; round <= rounds; ++round) {
    fs::create_directories(folder + "/plain");
    const double plain = seconds([&] {
      on_threads(ranks.size(), [&](std::size_t r) { plain_write(fmt::format("{}/plain/{}", folder, r), ranks[r]); });
    });
    static_cast<void>(claim_folder(save.files, save.directory, 0));
    const double ours = seconds([&] {
      backend->run([&](Device& device) {
        Program program;
        program.layouts = layouts;
        std::vector<std::vector<std::byte>>& buffers = ranks[static_cast<std::size_t>(device.rank())].buffers;
        const auto view = [&](std::int32_t unit, StatePart part) {
          std::vector<std::byte>& b = buffers[static_cast<std::size_t>(unit) * 3 + static_cast<std::size_t>(part)];
          return BufferView{b.data(), static_cast<std::int64_t>(b.size())};
        };
        save_checkpoint({program, device, round, view, true}, model, plan, save);
      });
    });
    say("save", all, ours, plain);
    for (const bool cold : {true, false}) {
      std::vector<std::vector<std::byte>> read(ranks.size());
      for (std::size_t r = 0; r < ranks.size(); ++r) read[r].resize(static_cast<std::size_t>(ranks[r].bytes));
      if (cold) drop_from_cache(folder);
      const double plain_reading = seconds([&] {
        on_threads(ranks.size(), [&](std::size_t r) { plain_read(fmt::format("{}/plain/{}", folder, r), read[r]); });
      });
      const double loading = seconds([&] {
        const Checkpoint saved(save.directory);
        on_threads(ranks.size(), [&](std::size_t r) {
          std::int64_t at = 0;
          for (const Piece& p : ranks[r].pieces) {
            saved.read(*saved.find(name_of(model.parameters[static_cast<std::size_t>(p.param)], p.part,
                                           saved.manifest().optimizer)),
                       p.box, {read[r].data() + at, static_cast<std::size_t>(p.bytes)});
            at += p.bytes;
          }
        });
      });
      say(cold ? "load" : "again", all, loading, plain_reading);
    }
    fs::remove_all(folder);
  }
}
