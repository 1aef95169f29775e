#include "models/input/pickle.h"

#include <bit>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>

#include "models/input/error.h"

namespace fsdp {
namespace {

struct None {};
struct Sequence {  // list or tuple
  std::uint32_t items;
};
struct Dictionary {  // keys and values in turn
  std::uint32_t items;
};
using Node = std::variant<None, bool, std::int64_t, double, std::string_view, Sequence, Dictionary>;

// Opcodes, as the module pickletools of Python describes them.
enum Opcode : unsigned char {
  kMark = '(',
  kStop = '.',
  kNone = 'N',
  kTrue = 0x88,
  kFalse = 0x89,
  kInt1 = 'K',
  kInt2 = 'M',
  kInt4 = 'J',
  kLong1 = 0x8a,
  kFloat = 'G',
  kText1 = 0x8c,
  kText4 = 'X',
  kText8 = 0x8d,
  kString1 = 'U',
  kBytes1 = 'C',
  kBytes4 = 'B',
  kEmptyDict = '}',
  kSetItem = 's',
  kSetItems = 'u',
  kEmptyList = ']',
  kAppend = 'a',
  kAppends = 'e',
  kEmptyTuple = ')',
  kTuple = 't',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kProtocol = 0x80,
  kFrame = 0x95,
  kMemoize = 0x94,
  kPut1 = 'q',
  kPut4 = 'r',
  kGet1 = 'h',
  kGet4 = 'j',
};
// Those with which Python would import a name, call something or ask for an object outside of the file.
constexpr std::string_view kCalls = "ciobRPQ\x81\x82\x83\x84\x92\x93";
constexpr unsigned kOldestProtocol = 2, kNewestProtocol = 5;

}  // namespace

struct PickleDocument::Nodes {
  std::vector<Node> all;
  std::vector<std::vector<std::uint32_t>> items;
  std::uint32_t root = 0;
};

namespace {

template <class Nodes>
class PickleReader {
 public:
  PickleReader(std::string_view bytes, const std::string& where, Nodes& nodes)
      : bytes_(bytes), where_(where), nodes_(nodes) {}

  void read() {
    if (bytes_.empty()) refuse("is empty");
    if (static_cast<unsigned char>(bytes_[0]) != kProtocol)
      refuse("is not a pickle of protocol 2 to 5", "give the file that torch.cuda.memory._dump_snapshot wrote");
    while (step(static_cast<unsigned char>(byte()))) {
    }
    if (stack_.size() != 1 || !marks_.empty()) refuse("does not end with one value");
    nodes_.root = stack_[0];
  }

 private:
  [[noreturn]] void refuse(const std::string& problem,
                           const std::string& remedy = "dump it again: the file is damaged") const {
    throw InputError({where_}, problem, remedy);
  }
  [[noreturn]] void damaged() const { refuse("is damaged at byte " + std::to_string(at_)); }

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) refuse("ends too early, at byte " + std::to_string(bytes_.size()));
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }
  char byte() { return take(1)[0]; }
  std::uint64_t little_endian(unsigned count) {
    std::uint64_t value = 0;
    const std::string_view taken = take(count);
    for (unsigned k = 0; k < count; ++k)
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(taken[k])) << (8 * k);
    return value;
  }
  std::int64_t long_integer() {
    const auto count = static_cast<unsigned>(little_endian(1));
    if (count > 9) refuse("holds an integer of more than 64 bits");
    if (count == 0) return 0;
    const std::uint64_t low = little_endian(count < 8 ? count : 8);
    if (count == 9) {
      if (byte() != 0 || low >> 63 != 0) refuse("holds an integer of more than 64 bits");
      return static_cast<std::int64_t>(low);
    }
    const unsigned unused = 64 - 8 * count;
    return static_cast<std::int64_t>(low << unused) >> unused;
  }
  double real() {
    std::uint64_t bits = 0;
    for (const char c : take(8)) bits = bits << 8 | static_cast<unsigned char>(c);
    return std::bit_cast<double>(bits);
  }

  void push(Node node) {
    stack_.push_back(static_cast<std::uint32_t>(nodes_.all.size()));
    nodes_.all.push_back(node);
  }
  std::uint32_t new_items() {
    nodes_.items.emplace_back();
    return static_cast<std::uint32_t>(nodes_.items.size() - 1);
  }
  // What lies above `from` leaves the stack; below it, a container stays that gets it.
  template <class Container>
  void put_into(std::size_t from) {
    const std::size_t count = stack_.size() - from;
    if (from <= floor()) damaged();
    const auto* container = std::get_if<Container>(&nodes_.all[stack_[from - 1]]);
    if (container == nullptr || (std::is_same_v<Container, Dictionary> && count % 2 != 0)) damaged();
    auto& items = nodes_.items[container->items];
    items.insert(items.end(), stack_.begin() + static_cast<std::ptrdiff_t>(from), stack_.end());
    stack_.resize(from);
  }
  void tuple(std::size_t from) {
    const std::uint32_t items = new_items();
    nodes_.items[items].assign(stack_.begin() + static_cast<std::ptrdiff_t>(from), stack_.end());
    stack_.resize(from);
    push(Sequence{items});
  }
  [[nodiscard]] std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  std::size_t mark() {
    if (marks_.empty()) damaged();
    const std::size_t from = marks_.back();
    marks_.pop_back();
    return from;
  }
  [[nodiscard]] std::size_t top(std::size_t count) const {
    if (stack_.size() - floor() < count) damaged();
    return stack_.size() - count;
  }
  void put(std::uint64_t number) { memo_[static_cast<std::uint32_t>(number)] = stack_[top(1)]; }
  void get(std::uint64_t number) {
    const auto known = memo_.find(static_cast<std::uint32_t>(number));
    if (known == memo_.end()) damaged();
    stack_.push_back(known->second);
  }

  bool step(unsigned char opcode) {
    switch (opcode) {
      case kStop: return false;
      case kProtocol:
        if (const std::uint64_t p = little_endian(1); p < kOldestProtocol || p > kNewestProtocol)
          refuse("is of pickle protocol " + std::to_string(p), "dump it with protocol 2 to 5");
        break;
      case kFrame:
        if (little_endian(8) > bytes_.size() - at_) refuse("ends too early, at byte " + std::to_string(bytes_.size()));
        break;
      case kMark: marks_.push_back(stack_.size()); break;
      case kNone: push(None{}); break;
      case kTrue: push(true); break;
      case kFalse: push(false); break;
      case kInt1: push(static_cast<std::int64_t>(little_endian(1))); break;
      case kInt2: push(static_cast<std::int64_t>(little_endian(2))); break;
      case kInt4: push(static_cast<std::int64_t>(static_cast<std::int32_t>(little_endian(4)))); break;
      case kLong1: push(long_integer()); break;
      case kFloat: push(real()); break;
      case kText1:
      case kString1:
      case kBytes1: push(take(little_endian(1))); break;
      case kText4:
      case kBytes4: push(take(little_endian(4))); break;
      case kText8: push(take(little_endian(8))); break;
      case kEmptyDict: push(Dictionary{new_items()}); break;
      case kEmptyList:
      case kEmptyTuple: push(Sequence{new_items()}); break;
      case kSetItem: put_into<Dictionary>(top(2)); break;
      case kSetItems: put_into<Dictionary>(mark()); break;
      case kAppend: put_into<Sequence>(top(1)); break;
      case kAppends: put_into<Sequence>(mark()); break;
      case kTuple: tuple(mark()); break;
      case kTuple1: tuple(top(1)); break;
      case kTuple2: tuple(top(2)); break;
      case kTuple3: tuple(top(3)); break;
      case kMemoize: put(memo_.size()); break;
      case kPut1: put(little_endian(1)); break;
      case kPut4: put(little_endian(4)); break;
      case kGet1: get(little_endian(1)); break;
      case kGet4: get(little_endian(4)); break;
      default: unknown(opcode);
    }
    return true;
  }
  [[noreturn]] void unknown(unsigned char opcode) const {
    if (kCalls.find(static_cast<char>(opcode)) != std::string_view::npos)
      refuse("holds more than data: loading it would run code of its own (byte " + std::to_string(at_ - 1) + ")",
             "give the file that torch.cuda.memory._dump_snapshot wrote, and do not load this one in Python");
    damaged();
  }

  std::string_view bytes_;
  const std::string& where_;
  Nodes& nodes_;
  std::size_t at_ = 0;
  std::vector<std::uint32_t> stack_;
  std::vector<std::size_t> marks_;  // sizes of the stack
  std::unordered_map<std::uint32_t, std::uint32_t> memo_;
};

}  // namespace

PickleDocument::PickleDocument(std::string_view bytes, std::string where)
    : nodes_(std::make_unique<Nodes>()), where_(std::move(where)) {
  PickleReader<Nodes>(bytes, where_, *nodes_).read();
}
PickleDocument::PickleDocument(PickleDocument&&) noexcept = default;
PickleDocument& PickleDocument::operator=(PickleDocument&&) noexcept = default;
PickleDocument::~PickleDocument() = default;

PickleValue PickleDocument::root() const& { return {*this, nodes_->root, ""}; }

std::optional<PickleValue> PickleValue::find(std::string_view key) const {
  const auto& nodes = *document_->nodes_;
  const auto* dictionary = std::get_if<Dictionary>(&nodes.all[node_]);
  if (dictionary == nullptr) refuse("is not a dictionary");
  const std::vector<std::uint32_t>& items = nodes.items[dictionary->items];
  for (std::size_t i = items.size(); i >= 2; i -= 2) {  // of a key that occurs twice, Python keeps the last
    const auto* text = std::get_if<std::string_view>(&nodes.all[items[i - 2]]);
    if (text == nullptr || *text != key) continue;
    if (std::holds_alternative<None>(nodes.all[items[i - 1]])) return std::nullopt;
    return PickleValue(*document_, items[i - 1], key);
  }
  return std::nullopt;
}

PickleValue PickleValue::at(std::string_view key) const {
  if (const auto value = find(key)) return *value;
  throw InputError({document_->where_, std::string(key)}, "is missing",
                   "give the file that torch.cuda.memory._dump_snapshot wrote");
}

std::size_t PickleValue::size() const {
  const auto& nodes = *document_->nodes_;
  const auto* sequence = std::get_if<Sequence>(&nodes.all[node_]);
  if (sequence == nullptr) refuse("is not a list");
  return nodes.items[sequence->items].size();
}

PickleValue PickleValue::item(std::size_t index) const {
  if (index >= size()) refuse("has " + std::to_string(size()) + " items");
  const auto& nodes = *document_->nodes_;
  return {*document_, nodes.items[std::get<Sequence>(nodes.all[node_]).items][index], {}};
}

std::vector<PickleValue> PickleValue::list() const {
  std::vector<PickleValue> all;
  all.reserve(size());
  for (std::size_t i = 0; i < size(); ++i) all.push_back(item(i));
  return all;
}

std::int64_t PickleValue::integer(std::int64_t min, std::int64_t max) const {
  const auto* value = std::get_if<std::int64_t>(&document_->nodes_->all[node_]);
  if (value == nullptr) refuse("is not an integer");
  if (*value < min || *value > max)
    refuse(std::to_string(*value) + " is out of range (" + std::to_string(min) + " to " + std::to_string(max) + ")");
  return *value;
}

std::string_view PickleValue::text() const {
  const auto* value = std::get_if<std::string_view>(&document_->nodes_->all[node_]);
  if (value == nullptr) refuse("is not a text");
  return *value;
}

void PickleValue::refuse(const std::string& problem, const std::string& remedy) const {
  throw InputError({document_->where_, std::string(key_)}, problem, remedy);
}

}  // namespace fsdp
