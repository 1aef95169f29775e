#include "executor/checkpoint/save.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include "executor/arithmetic/element.h"
#include "executor/checkpoint/checksum.h"
#include "executor/checkpoint/folder.h"
#include "executor/checkpoint/manifest.h"
#include "executor/checkpoint/pieces.h"
#include "executor/data/safetensors_writer.h"
#include "models/input/error.h"
#include "models/input/json.h"
#include "models/units.h"

namespace fsdp {
namespace {

constexpr const char* kNotSaved = "is not saved";

struct Saving {
  const RankState& state;
  const ModelGraph& model;
  const ShardingPlan& plan;
  const SaveOptions& options;
};

void clear_up(const Saving& s) {
  if (s.state.device.rank() == 0) abandon(s.options.files, s.options.directory, s.state.steps_done);
}

// What a rank says of its part: "+" and a text, or "-" and why it failed. A failure is everybody's.
std::vector<std::string> agree(const Saving& s, const char* problem, const std::function<std::string()>& part) {
  std::string mine;
  try {
    mine = "+" + part();
  } catch (const std::exception& e) {
    mine = std::string("-") + e.what();
  }
  std::vector<std::string> all;
  try {
    all = s.state.device.exchange(mine);
  } catch (const std::exception&) {  // another rank has ended the run
    clear_up(s);
    throw;
  }
  for (const std::string& text : all) {
    if (!text.starts_with("-")) continue;
    clear_up(s);
    throw MachineError(fmt::format("the checkpoint of step {} {}: {}", s.state.steps_done, problem, text.substr(1)));
  }
  for (std::string& text : all) text.erase(0, 1);
  return all;
}

std::string header_of(const Saving& s, const std::vector<Piece>& pieces, std::int64_t rank) {
  std::vector<HeaderTensor> tensors;
  std::map<std::pair<std::int32_t, StatePart>, int> boxes;  // of one tensor: the second is "NAME#2"
  for (const Piece& p : pieces) {
    const int box = ++boxes[{p.param, p.part}];
    tensors.push_back({name_of(s.model.parameters[static_cast<std::size_t>(p.param)], p.part, s.plan.optimizer.kind) +
                           (box == 1 ? std::string() : "#" + std::to_string(box)),
                       s.plan.master_dtype, p.box.sizes});
  }
  return safetensors_header(tensors, {{"format", "pt"},
                                      {"checkpoint", "fsdp-plan/checkpoint/1"},
                                      {"model", s.model.name},
                                      {"model_digest", s.model.digest()},
                                      {"step", std::to_string(s.state.steps_done)},
                                      {"rank", std::to_string(rank)}});
}

bool all_finite(DType type, std::span<const std::byte> values) {
  return with_type(type, [&](auto element) {
    using T = decltype(element);
    const std::span<const T> all(reinterpret_cast<const T*>(values.data()), values.size() / sizeof(T));
    return std::all_of(all.begin(), all.end(), [](T x) { return std::isfinite(load(x)); });
  });
}

// A rank's file, written a round at a time, so that no rank is silent for long and one that fails ends the others soon.
class RankFile {
 public:
  explicit RankFile(const Saving& s)
      : s_(s), pieces_(pieces_to_write(s.model, s.plan, s.state.program.layouts, s.state.device.rank())) {}

  // False: there is more. What a round wrote is on the disk when it ends.
  bool write_round() {
    constexpr std::int64_t of_all = std::int64_t{1} << 29,
                           least = std::int64_t{1} << 24;  // 10 s of a disk that writes 50 MB/s
    const std::int64_t rank = s_.state.device.rank(),
                       end = (file_ ? file_->bytes() : 0) + std::max(least, of_all / s_.plan.ranks());
    if (!file_) {
      file_.emplace(s_.options.files,
                    saving_folder(s_.options.directory, s_.state.steps_done) + "/" + rank_file_name(rank));
      file_->append(header_of(s_, pieces_, rank));
    }
    while (next_ < pieces_.size() && file_->bytes() < end) write_block();
    if (next_ < pieces_.size()) file_->sync();
    else file_->finish();
    return next_ == pieces_.size();
  }

  // What the manifest needs besides what follows from the plan: the checksums, in the order of the blocks.
  [[nodiscard]] const std::string& sums() const { return sums_; }

 private:
  void write_block() {
    const Piece& p = pieces_[next_];
    const BufferView view = s_.state.view(p.unit, p.part);
    if (view.data == nullptr || p.offset + p.bytes > view.bytes)
      throw MachineError(
          fmt::format("unit {} holds {} bytes where the plan has {}", p.unit, view.bytes, p.offset + p.bytes));
    const std::int64_t n = std::min(s_.options.block_bytes, p.bytes - done_);
    const std::span<const std::byte> block = s_.state.device.bytes_of({view.data + p.offset + done_, n}, copy_);
    if (p.part == StatePart::parameter && !all_finite(s_.plan.master_dtype, block))
      throw MachineError(s_.model.parameters[static_cast<std::size_t>(p.param)].name +
                         " has values that are infinite or not numbers: training has diverged; go on from an older "
                         "checkpoint with a lower --lr");
    sums_ += fmt::format("{:08x}", crc32c(block));
    file_->append(block);  // still in the cache
    done_ += n;
    if (done_ < p.bytes) return;
    ++next_;
    done_ = 0;
  }

  const Saving& s_;
  const std::vector<Piece> pieces_;
  std::vector<std::byte> copy_;  // of a block, where the host cannot read the rank's memory
  std::optional<FileWriter> file_;
  std::size_t next_ = 0;   // piece
  std::int64_t done_ = 0;  // bytes of it
  std::string sums_;
};

// The checksums of every rank.
std::vector<std::string> write_rank_files(const Saving& s) {
  RankFile file(s);
  for (bool done = false, all_done = false; !all_done;) {
    all_done = true;
    const std::vector<std::string> said = agree(s, kNotSaved, [&] {
      done = done || file.write_round();
      return std::string(done ? "done" : "more");
    });
    for (const std::string& text : said) all_done = all_done && text == "done";
  }
  return agree(s, kNotSaved, [&] { return file.sums(); });
}

Manifest manifest_of(const Saving& s, const std::vector<std::string>& sums) {
  Manifest m;
  m.model = s.model.name;
  m.model_digest = s.model.digest();
  m.plan_digest = s.plan.digest();
  if (s.options.source.config.size() <= kMaxSavedConfig) m.source = s.options.source;
  m.step = s.state.steps_done;
  const std::int64_t in_run = s.state.steps_done - s.options.steps_before;
  m.sequences =
      checked_add(s.options.sequences_before,
                  checked_mul(in_run, s.plan.sequences_per_rank() * s.plan.data_ranks(), "sequences"), "sequences");
  m.seq_len = s.plan.seq_len;
  m.seed = s.plan.seed;
  m.optimizer = s.plan.optimizer.kind;
  m.mesh = s.plan.mesh;
  m.block_bytes = s.options.block_bytes;
  constexpr std::size_t parts = 1 + kMostOptimizerStates;
  std::vector<SavedTensor> tensors(s.model.parameters.size() * parts);
  for (std::int64_t rank = 0; rank < s.plan.ranks(); ++rank) {
    const std::vector<Piece> pieces = pieces_to_write(s.model, s.plan, s.state.program.layouts, rank);
    const std::string header = header_of(s, pieces, rank);
    const std::string& rank_sums = sums.at(static_cast<std::size_t>(rank));
    std::int64_t at = static_cast<std::int64_t>(header.size());
    std::size_t next = 0;
    for (const Piece& p : pieces) {
      const Parameter& parameter = s.model.parameters[static_cast<std::size_t>(p.param)];
      SavedTensor& t =
          tensors[static_cast<std::size_t>(p.param) + static_cast<std::size_t>(p.part) * s.model.parameters.size()];
      if (t.boxes.empty())
        t = {name_of(parameter, p.part, s.plan.optimizer.kind), s.plan.master_dtype, parameter.shape, {}};
      SavedBox box{static_cast<std::int32_t>(rank), p.box, at, p.bytes, {}};
      for (std::int64_t b = 0; b < p.bytes; b += s.options.block_bytes, next += 8)
        box.checksums.push_back(static_cast<std::uint32_t>(std::stoul(rank_sums.substr(next, 8), nullptr, 16)));
      t.boxes.push_back(std::move(box));
      at += p.bytes;
    }
    m.files.push_back(
        {rank_file_name(rank), at, static_cast<std::int64_t>(header.size()), crc32c(std::as_bytes(std::span(header)))});
  }
  for (SavedTensor& t : tensors)
    if (!t.boxes.empty()) m.tensors.push_back(std::move(t));
  return m;
}

std::string write_manifest(const Saving& s, const std::vector<std::string>& sums) {
  const std::string path = saving_folder(s.options.directory, s.state.steps_done) + "/" + kManifestName;
  const std::string text = to_json_text(manifest_of(s, sums));
  if (static_cast<std::int64_t>(text.size()) > kMaxJsonBytes)
    throw MachineError(
        fmt::format("{}: would have {} bytes, more than can be read again; save with larger blocks or fewer ranks",
                    path, text.size()));
  static_cast<void>(parse_manifest(text, path));  // holes, overlaps, sums: what could not be loaded is not committed
  FileWriter file(s.options.files, path);
  file.append(text);
  file.finish();
  commit(s.options.files, s.options.directory, s.state.steps_done);
  return "";
}

}  // namespace

void save_checkpoint(const RankState& state, const ModelGraph& model, const ShardingPlan& plan,
                     const SaveOptions& options) {
  const Saving s{state, model, plan, options};
  const bool first = state.device.rank() == 0;
  agree(s, kNotSaved, [&] { return first ? begin_saving(options.files, options.directory, state.steps_done) : ""; });
  const std::vector<std::string> sums = write_rank_files(s);
  agree(s, kNotSaved, [&] { return first ? write_manifest(s, sums) : ""; });
  if (options.keep == 0) return;
  agree(s, "is saved, but an older one is still there", [&] {
    if (first) remove_all_but(options.files, options.directory, options.keep);
    return "";
  });
}

std::function<void(const RankState&)> checkpoint_saver(const ModelGraph& model, const ShardingPlan& plan,
                                                       SaveOptions options) {
  check_savable(plan);
  struct Saver {
    ModelGraph model;
    ShardingPlan plan;
    SaveOptions options;
  };
  const auto saver = std::make_shared<const Saver>(Saver{model, plan, std::move(options)});
  return [saver](const RankState& state) {
    const std::int64_t every = saver->options.every;
    if (state.last || (every > 0 && state.steps_done % every == 0))
      save_checkpoint(state, saver->model, saver->plan, saver->options);
  };
}

}  // namespace fsdp
