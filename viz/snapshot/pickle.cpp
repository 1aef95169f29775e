#include "viz/snapshot/pickle.h"

#include <utility>

namespace fsdp {
namespace {

// Opcodes, as the module pickletools of Python describes them.
constexpr unsigned kProtocol = 0x80, kMark = '(', kStop = '.', kEmptyDict = '}', kSetItems = 'u', kEmptyList = ']',
                   kAppends = 'e', kText = 'X', kInt1 = 'K', kInt2 = 'M', kInt4 = 'J', kLong = 0x8a, kTrue = 0x88,
                   kFalse = 0x89, kPut = 'r', kGet1 = 'h', kGet4 = 'j';
// Items that are appended at once: a viewer in JavaScript gives them to one call.
constexpr std::int64_t kMostAtOnce = 1000;

}  // namespace

PickleWriter::PickleWriter() {
  byte(kProtocol);
  byte(2);
}

void PickleWriter::four(std::uint32_t value) {
  for (int k = 0; k < 4; ++k) byte(value >> (8 * k) & 0xffu);
}

void PickleWriter::value() {
  if (open_.empty() || open_.back() < 0) return;
  if (open_.back() == kMostAtOnce) {
    byte(kAppends);
    open_.back() = 0;
  }
  if (open_.back()++ == 0) byte(kMark);
}

void PickleWriter::begin_dict() {
  value();
  byte(kEmptyDict);
  byte(kMark);
  open_.push_back(-1);
}

void PickleWriter::end_dict() {
  byte(kSetItems);
  open_.pop_back();
}

void PickleWriter::begin_list() {
  value();
  byte(kEmptyList);
  open_.push_back(0);
}

void PickleWriter::end_list() {
  if (open_.back() > 0) byte(kAppends);
  open_.pop_back();
}

void PickleWriter::put() {
  byte(kPut);
  four(kept_++);
}

void PickleWriter::get(std::uint32_t number) {
  if (number < 256) {
    byte(kGet1);
    byte(number);
  } else {
    byte(kGet4);
    four(number);
  }
}

void PickleWriter::text(std::string_view text) {
  value();
  if (const auto known = texts_.find(text); known != texts_.end()) return get(known->second);
  byte(kText);
  four(static_cast<std::uint32_t>(text.size()));
  out_ += text;
  texts_.emplace(text, kept_);
  put();
}

void PickleWriter::integer(std::int64_t n) {
  value();
  if (n >= 0 && n < 256) {
    byte(kInt1);
    byte(static_cast<unsigned>(n));
  } else if (n >= 0 && n < 65'536) {
    byte(kInt2);
    byte(static_cast<unsigned>(n) & 0xffu);
    byte(static_cast<unsigned>(n) >> 8);
  } else if (n >= INT32_MIN && n <= INT32_MAX) {
    byte(kInt4);
    four(static_cast<std::uint32_t>(n));
  } else {
    byte(kLong);
    byte(8);
    four(static_cast<std::uint32_t>(n));
    four(static_cast<std::uint32_t>(n >> 32));
  }
}

void PickleWriter::boolean(bool yes) {
  value();
  byte(yes ? kTrue : kFalse);
}

bool PickleWriter::share(std::int64_t number) {
  const auto known = shared_.find(number);
  if (known == shared_.end()) return false;
  value();
  get(known->second);
  return true;
}

void PickleWriter::keep(std::int64_t number) {
  shared_[number] = kept_;
  put();
}

std::string PickleWriter::finish() && {
  byte(kStop);
  return std::move(out_);
}

}  // namespace fsdp
