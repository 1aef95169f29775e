#include "executor/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "executor/checkpoint/checksum.h"
#include "executor/checkpoint/folder.h"
#include "models/index.h"
#include "models/input/error.h"
#include "models/input/json.h"
#include "models/input/suggest.h"
#include "models/units.h"

namespace fsdp {
namespace {

constexpr const char* kUseAnother = "use another checkpoint";

// One box's blocks, each read and verified when it is first touched, straight to where it belongs where all of it does.
class BlockReader {
 public:
  BlockReader(const CheckedFile& file, const std::string& path, const SavedTensor& tensor, const SavedBox& box,
              std::int64_t block_bytes)
      : file_(file), path_(path), tensor_(tensor), box_(box), block_(block_bytes) {}

  void read(std::int64_t begin, std::int64_t end, std::byte* to) {  // bytes of the box
    while (begin < end) {
      const std::int64_t block = begin / block_, first = block * block_, last = std::min(first + block_, box_.bytes);
      const std::int64_t n = std::min(end, last) - begin;
      if (block != held_ && n == last - first) {
        fetch(block, first, {to, at(n)});
      } else {
        if (block != held_) {
          bytes_.resize(at(last - first));
          held_ = -1;
          fetch(block, first, bytes_);
          held_ = block;
        }
        std::copy_n(bytes_.data() + (begin - first), n, to);
      }
      begin += n;
      to += n;
    }
  }

 private:
  void fetch(std::int64_t block, std::int64_t first, std::span<std::byte> to) const {
    file_.read(box_.begin + first, to);
    if (crc32c(to) == box_.checksums[at(block)]) return;
    throw InputError(path_,
                     fmt::format("tensor '{}': bytes {} to {} do not match their checksum", printable(tensor_.name),
                                 box_.begin + first, box_.begin + first + static_cast<std::int64_t>(to.size()) - 1),
                     std::string("the file is damaged; ") + kUseAnother);
  }

  const CheckedFile& file_;
  const std::string& path_;
  const SavedTensor& tensor_;
  const SavedBox& box_;
  const std::int64_t block_;
  std::int64_t held_ = -1;
  std::vector<std::byte> bytes_;
};

}  // namespace

std::string checkpoint_folder(const std::string& path, const FileSystem& files) {
  if (is_kind(files, path + "/" + kManifestName, EntryKind::file)) return path;
  check_step_folder(files, path);
  const std::vector<std::int64_t> steps = saved_steps(files, path);
  if (steps.empty())
    throw InputError(path, "holds no checkpoint",
                     "give the folder that `fsdp-plan run --save` wrote to, or one of its steps");
  return path + "/" + step_folder_name(steps.back());
}

Checkpoint::Checkpoint(const std::string& path, FileSystem files)
    : files_(std::move(files)), folder_(checkpoint_folder(path, files_)) {
  const std::string where = folder_ + "/" + kManifestName;
  manifest_ = parse_manifest(read_text(files_, where, kMaxJsonBytes), where);
  const std::string name = folder_.substr(folder_.find_last_of('/') + 1);
  if (name.starts_with("step-") && name != step_folder_name(manifest_.step))
    throw InputError(where, fmt::format("is of step {}, in the folder of another", manifest_.step),
                     "put every file back to its own checkpoint");
  for (std::size_t i = 0; i < manifest_.files.size(); ++i) check_file(manifest_.files[i], static_cast<std::int64_t>(i));
  for (const SavedTensor& t : manifest_.tensors) by_name_.emplace(t.name, &t);
}

const SavedTensor* Checkpoint::find(std::string_view tensor) const {
  const auto found = by_name_.find(tensor);
  return found == by_name_.end() ? nullptr : found->second;
}

void Checkpoint::check_file(const SavedFile& file, std::int64_t index) const {
  const std::string path = folder_ + "/" + file.name;
  const CheckedFile reader(files_, path);
  Entry entry;
  if (const int result = files_.inspect(path, entry); result < 0) fail_machine(path, "cannot be read", result);
  std::string header(at(std::min(file.header_bytes, entry.bytes)), '\0');
  reader.read(0, std::as_writable_bytes(std::span(header)));
  if (crc32c(std::as_bytes(std::span(header))) != file.header_checksum)
    throw InputError(path, explain_header(header, index), kUseAnother);
  if (entry.bytes != file.bytes)
    throw InputError(path, fmt::format("has {} bytes, where {} were written", entry.bytes, file.bytes),
                     std::string(entry.bytes < file.bytes ? "it is truncated; " : "") + kUseAnother);
}

// Of a file that is not the one that was written: whose it is, if it says so.
std::string Checkpoint::explain_header(const std::string& header, std::int64_t index) const {
  constexpr std::size_t length_bytes = 8;
  const std::string body = header.size() > length_bytes ? header.substr(length_bytes) : "";
  const nlohmann::json json = nlohmann::json::parse(body.begin(), body.end(), nullptr, false);
  const auto texts = json.is_object() ? json.find("__metadata__") : json.end();
  const auto text = [&](const char* key) {
    const auto found = texts->find(key);
    return found != texts->end() && found->is_string() ? printable(found->get<std::string>()) : std::string("?");
  };
  const bool says = json.is_object() && texts != json.end() && texts->is_object() && texts->contains("step");
  if (says && text("model") == manifest_.model && text("step") == std::to_string(manifest_.step) &&
      text("rank") == std::to_string(index))
    return "is not the file that was written: its header differs, though it names this model, step and rank";
  if (says)
    return fmt::format(
        "is not the file that belongs here: it says it is of model {}, step {}, rank {}, not of {}, step {}, rank {}",
        text("model"), text("step"), text("rank"), manifest_.model, manifest_.step, index);
  return "is not the file that was written: its header differs";
}

void Checkpoint::read_box(const SavedTensor& tensor, const SavedBox& saved, const Box& part, const Box& wanted,
                          std::span<std::byte> to) const {
  const std::string path = folder_ + "/" + manifest_.files[at(saved.file)].name;
  const CheckedFile file(files_, path);
  BlockReader blocks(file, path, tensor, saved, manifest_.block_bytes);
  const std::int64_t width = size_of(tensor.dtype);
  for_each_run(part, saved.box, wanted, [&](std::int64_t from, std::int64_t into, std::int64_t count) {
    blocks.read(from * width, (from + count) * width, to.data() + into * width);
  });
}

void Checkpoint::read(const SavedTensor& tensor, const Box& wanted, std::span<std::byte> to) const {
  if (wanted.sizes.size() != tensor.shape.size() ||
      static_cast<std::int64_t>(to.size()) != checked_mul(wanted.volume(), size_of(tensor.dtype), tensor.name))
    throw MachineError(
        fmt::format("{}: {} bytes are asked for a box of {} elements", tensor.name, to.size(), wanted.volume()));
  for (const SavedBox& saved : tensor.boxes)
    if (const std::optional<Box> part = intersection(saved.box, wanted)) read_box(tensor, saved, *part, wanted, to);
}

void Checkpoint::verify(const std::function<void(std::int64_t, std::int64_t)>& progress) const {
  const std::int64_t all = manifest_.tensor_bytes();
  std::int64_t done = 0;
  std::vector<std::byte> block(at(manifest_.block_bytes));
  for (std::size_t f = 0; f < manifest_.files.size(); ++f) {
    const std::string path = folder_ + "/" + manifest_.files[f].name;
    const CheckedFile file(files_, path);
    for (const SavedTensor& t : manifest_.tensors)
      for (const SavedBox& b : t.boxes) {
        if (at(b.file) != f) continue;
        BlockReader reader(file, path, t, b, manifest_.block_bytes);
        for (std::int64_t begin = 0; begin < b.bytes; begin += manifest_.block_bytes)
          reader.read(begin, std::min(b.bytes, begin + manifest_.block_bytes), block.data());
        done += b.bytes;
        if (progress) progress(done, all);
      }
  }
}

namespace {

void check_tensor(const Checkpoint& saved, const Parameter& p, StatePart part, DType type) {
  const std::string name = name_of(p, part, saved.manifest().optimizer);
  const SavedTensor* t = saved.find(name);
  const std::string where = saved.folder() + "/" + kManifestName + ": tensor '" + name + "'";
  if (t == nullptr) throw InputError(where, "is missing", "give the model and plan that it was saved from");
  if (t->shape != p.shape)
    throw InputError(
        where, fmt::format("has shape [{}], the model's is [{}]", fmt::join(t->shape, ", "), fmt::join(p.shape, ", ")),
        "give the model that it was saved from");
  if (t->dtype != type)
    throw InputError(where, fmt::format("is {}, the plan's master dtype is {}", fsdp::name(t->dtype), fsdp::name(type)),
                     "go on with the dtype that it was saved in");
}

// What decides which states there are.
struct KindOfStates {
  OptimizerKind kind{};
  bool momentum = false;
  friend bool operator==(const KindOfStates&, const KindOfStates&) = default;
};

KindOfStates states_of(const Optimizer& o) { return {o.kind, facts_of(o.kind).takes_momentum && o.momentum != 0}; }

KindOfStates states_of(const Manifest& m) {
  const bool any =
      std::any_of(m.tensors.begin(), m.tensors.end(), [](const SavedTensor& t) { return is_optimizer_state(t.name); });
  return {m.optimizer, facts_of(m.optimizer).takes_momentum && any};
}

std::string words(const KindOfStates& s) {
  const char* momentum = !facts_of(s.kind).takes_momentum ? "" : s.momentum ? " with momentum" : " without momentum";
  return std::string(name(s.kind)) + momentum;
}

}  // namespace

void check_resumable(const Checkpoint& saved, const ModelGraph& model, const ShardingPlan& plan) {
  const Manifest& m = saved.manifest();
  const std::string where = saved.folder() + "/" + kManifestName;
  const std::size_t states = state_names(plan.optimizer).size();
  const KindOfStates before = states_of(m), now = states_of(plan.optimizer);
  const bool same = before == now;
  std::size_t wanted = 0;
  for (const Parameter& p : model.parameters) {
    check_tensor(saved, p, StatePart::parameter, plan.master_dtype);
    ++wanted;
    if (!p.trainable || !same) continue;
    for (std::size_t k = 0; k < states; ++k) check_tensor(saved, p, kStateParts[k], plan.master_dtype);
    wanted += states;
  }
  if (m.model_digest != model.digest())
    throw InputError(where,
                     fmt::format("is of another model, '{}' of digest {}; this one is '{}', {}", m.model,
                                 m.model_digest, model.name, model.digest()),
                     "give the model that it was saved from");
  if (!same)
    throw InputError(
        where,
        fmt::format("was saved by {}, the plan trains with {}, which keeps other states", words(before), words(now)),
        "go on with the same optimizer");
  if (m.tensors.size() != wanted)
    throw InputError(
        where, fmt::format("holds {} tensors, where the model and its optimizer have {}", m.tensors.size(), wanted),
        "give the model that it was saved from");
  if (m.seed != plan.seed)
    throw InputError(where,
                     fmt::format("was trained with seed {}, the plan's is {}: data would not go on where it stopped",
                                 m.seed, plan.seed),
                     fmt::format("make the plan with --seed {}", m.seed));
  if (m.seq_len != plan.seq_len)
    throw InputError(where,
                     fmt::format("counts its data in sequences of {} tokens, the plan has {}", m.seq_len, plan.seq_len),
                     "go on with the same length, or start anew from `fsdp-plan checkpoint export`");
}

void resume_from(const std::shared_ptr<const Checkpoint>& saved, Training& training) {
  training.steps_done = saved->manifest().step;
  training.sequences_done = saved->manifest().sequences;
  training.state = [saved](const Parameter& p, StatePart part, const Slab& slab, DType type, std::byte* to) {
    if (slab.rows == 0) return;
    const SavedTensor* t = saved->find(name_of(p, part, saved->manifest().optimizer));
    if (t == nullptr || t->dtype != type || t->shape != p.shape)
      throw MachineError(saved->folder() + ": holds no '" + p.name + "' of the type and shape that are asked for");
    const Box box = box_of(slab, p.shape);
    saved->read(*t, box, {to, at(box.volume() * size_of(type))});
  };
}

}  // namespace fsdp
