// One list of fields per record, for whatever goes through all of them: writing a JSON document, reading it back. A
// record names each field once, in the order of the document:
//
//   template <class Io>
//   void fields(Io& io, RecordOrConst<StepNoise> auto& n) {
//     io("warmup_steps", n.warmup_steps, Range{0, kMaxInteger});   // numbers say what is refused
//     io("settled", n.settled);
//     io("own_cores", n.own_cores, Range{0.0, 1e7});               // std::optional: left out while it is empty
//     io("memory", n.memory);                                      // records, and lists of them, nest
//   }
//
//   FieldWriter<nlohmann::ordered_json> writer;        FieldReader reader(object, "run again");
//   fields(writer, noise);                             fields(reader, noise);
//   writer.take().dump()                               object.finish();   // refuses unknown keys
//
// A type with a name of its own in documents (an enum, a key) says how it is read: `bool from_text(std::string_view,
// T&)` beside `text(const T&)`, and `std::string_view noun(const T&)` for the refusal "'x' is no verdict".
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "models/input/json.h"
#include "models/units.h"

namespace fsdp {

template <class T, class Record>
concept RecordOrConst = std::same_as<std::remove_const_t<T>, Record>;

// The values that are accepted, both ends included.
template <class T>
struct Range {
  T least{}, most{};
};
inline constexpr double kMaxSeconds = 1e20;  // of any sum: an operation has less than 1e12 (planner/costs/demands.cpp)
inline constexpr std::int64_t kMaxBytes = std::int64_t{1} << 60;
inline constexpr Range<double> kSecondsRange{0, kMaxSeconds};
inline constexpr Range<std::int64_t> kBytesRange{0, kMaxBytes};

template <class T>
concept TextValue = requires(T& value, std::string_view text) {
  { from_text(text, value) } -> std::same_as<bool>;
};

template <class Json>
class FieldWriter {
 public:
  template <class T>
  void operator()(std::string_view key, const T& value) {
    at(key) = json_of(value);
  }
  template <class T, class Limit>
  void operator()(std::string_view key, const T& value, const Range<Limit>&) {
    at(key) = json_of(value);
  }
  template <class T>
  void operator()(std::string_view key, const std::optional<T>& value) {
    if (value) at(key) = json_of(*value);
  }
  template <class T, class Limit>
  void operator()(std::string_view key, const std::optional<T>& value, const Range<Limit>&) {
    if (value) at(key) = json_of(*value);
  }
  // A number of which one value stands for none.
  template <class T>
  void or_none(std::string_view key, const std::optional<T>& value, T none, const Range<std::int64_t>&) {
    at(key) = value.value_or(none);
  }
  // Numbers that may be infinite or NaN: null in JSON.
  void maybe_nan(std::string_view key, const std::vector<double>& values) { at(key) = values; }
  // A list that documents of earlier versions lack.
  template <class T>
  void added(std::string_view key, const std::vector<T>& values) {
    at(key) = json_of(values);
  }
  // Sizes that are computed as real numbers: integers in documents, as all sizes are.
  void whole(std::string_view key, double value, const Range<double>& range) {
    at(key) = static_cast<std::int64_t>(std::llround(std::min(value, range.most)));
  }
  void added_whole(std::string_view key, double value, const Range<double>& range) { whole(key, value, range); }
  // A list that is left out while it is empty.
  template <class T>
  void if_any(std::string_view key, const std::vector<T>& values) {
    if (!values.empty()) at(key) = json_of(values);
  }
  template <class T, class Limit>
  void if_any(std::string_view key, const std::vector<T>& values, const Range<Limit>&) {
    if_any(key, values);
  }
  // Pairs of numbers in one flat list.
  template <class T, class Number>
  void pairs(std::string_view key, const std::vector<T>& values, Number T::*first, Number T::*second,
             const Range<Number>&, const char* /*expected*/) {
    std::vector<Number> flat;
    flat.reserve(2 * values.size());
    for (const T& value : values) flat.insert(flat.end(), {value.*first, value.*second});
    at(key) = flat;
  }
  // The two ends of an interval, [low, high].
  template <class T, class Number>
  void ends(std::string_view key, const std::optional<T>& value, Number T::*low, Number T::*high,
            const Range<Number>&) {
    if (value) at(key) = {(*value).*low, (*value).*high};
  }
  // An object that has no record of its own.
  template <class Body>
  void group(std::string_view key, const Body& body) {
    FieldWriter inner;
    body(inner);
    at(key) = inner.take();
  }
  // What follows from other fields: written for readers who want it, never read.
  template <class T>
  void derived(std::string_view key, const T& value) {
    at(key) = value;
  }
  [[nodiscard]] Json take() { return std::move(json_); }

 private:
  Json& at(std::string_view key) { return json_[std::string(key)]; }

  template <class T>
  static Json json_of(const T& value) {
    if constexpr (requires { value.count(); }) {
      return value.count();
    } else if constexpr (TextValue<std::remove_const_t<T>>) {
      return text(value);
    } else if constexpr (std::is_arithmetic_v<T> || std::same_as<T, std::string>) {
      return value;
    } else {
      FieldWriter inner;
      fields(inner, value);
      return inner.take();
    }
  }
  template <class T>
  static Json json_of(const std::vector<T>& values) {
    Json list = Json::array();
    for (const T& value : values) list.push_back(json_of(value));
    return list;
  }

  Json json_;
};

class FieldReader {
 public:
  // `remedy`: what to do about a document with a word that is not known.
  FieldReader(JsonObject& object, std::string_view remedy) : object_(object), remedy_(remedy) {}

  void operator()(std::string_view key, std::string& value) { value = object_.text(key); }
  void operator()(std::string_view key, bool& value) { value = object_.boolean(key); }
  void operator()(std::string_view key, Bytes& value) { value = Bytes(object_.integer(key, 0, kMaxBytes)); }
  void operator()(std::string_view key, Seconds& value) { value = Seconds(object_.number(key, 0, kMaxSeconds)); }
  void operator()(std::string_view key, std::vector<std::string>& values) { values = object_.texts(key); }
  template <std::integral T, class Limit>
  void operator()(std::string_view key, T& value, const Range<Limit>& range) {
    value = static_cast<T>(object_.integer(key, range.least, range.most));
  }
  void operator()(std::string_view key, double& value, const Range<double>& range) {
    value = object_.number(key, range.least, range.most);
  }
  template <std::integral T, class Limit>
  void operator()(std::string_view key, std::optional<T>& value, const Range<Limit>& range) {
    if (const auto found = object_.optional_integer(key, range.least, range.most)) value = static_cast<T>(*found);
  }
  void operator()(std::string_view key, std::optional<double>& value, const Range<double>& range) {
    value = object_.optional_number(key, range.least, range.most);
  }
  void operator()(std::string_view key, std::vector<double>& values, const Range<double>& range) {
    values = object_.numbers(key, range.least, range.most);
  }
  template <std::integral T, class Limit>
  void operator()(std::string_view key, std::vector<T>& values, const Range<Limit>& range) {
    values.clear();
    for (const std::int64_t value : object_.integers(key, range.least, range.most))
      values.push_back(static_cast<T>(value));
  }
  template <TextValue T>
  void operator()(std::string_view key, T& value) {
    const std::string found = object_.text(key);
    if (!from_text(found, value)) refuse_text(key, found, value);
  }
  template <TextValue T>
  void operator()(std::string_view key, std::vector<T>& values) {
    values.clear();
    for (const std::string& found : object_.texts(key)) {
      values.emplace_back();
      if (!from_text(found, values.back())) refuse_text(key, found, values.back());
    }
  }
  template <class Record>
  void operator()(std::string_view key, Record& record) {
    read(object_.object(key), record);
  }
  template <class Record>
  void operator()(std::string_view key, std::optional<Record>& record) {
    if (auto object = object_.optional_object(key)) read(std::move(*object), record.emplace());
  }
  template <class Record>
  void operator()(std::string_view key, std::vector<Record>& records) {
    records.clear();
    for (const JsonValue& item : object_.array(key)) read(item.object(), records.emplace_back());
  }

  template <class T>
  void or_none(std::string_view key, std::optional<T>& value, T none, const Range<std::int64_t>& range) {
    const std::int64_t found = object_.integer(key, range.least, range.most);
    if (found != none) value = static_cast<T>(found);
  }
  void maybe_nan(std::string_view key, std::vector<double>& values) { values = object_.numbers_or_nan(key); }
  template <class T>
  void added(std::string_view key, std::vector<T>& values) {
    if (object_.has(key)) (*this)(key, values);
  }
  // Documents of earlier versions hold fractions of a byte.
  void whole(std::string_view key, double& value, const Range<double>& range) {
    value = std::round(object_.number(key, range.least, range.most));
  }
  void added_whole(std::string_view key, double& value, const Range<double>& range) {
    if (object_.has(key)) whole(key, value, range);
  }
  template <class T>
  void if_any(std::string_view key, std::vector<T>& values) {
    if (object_.has(key)) (*this)(key, values);
  }
  template <class T, class Limit>
  void if_any(std::string_view key, std::vector<T>& values, const Range<Limit>& range) {
    if (object_.has(key)) (*this)(key, values, range);
  }
  template <class T, class Number>
  void pairs(std::string_view key, std::vector<T>& values, Number T::*first, Number T::*second,
             const Range<Number>& range, const char* expected) {
    const std::vector<Number> flat = numbers(key, range);
    if (flat.size() % 2 != 0)
      object_.refuse(key, std::string("expected pairs of ") + expected + ", found an odd number of values");
    values.resize(flat.size() / 2);
    for (std::size_t i = 0; i < values.size(); ++i) values[i].*first = flat[2 * i], values[i].*second = flat[2 * i + 1];
  }
  template <class T, class Number>
  void ends(std::string_view key, std::optional<T>& value, Number T::*low, Number T::*high,
            const Range<Number>& range) {
    if (!object_.has(key)) return;
    const std::vector<Number> both = numbers(key, range);
    if (both.size() != 2 || both[0] > both[1]) object_.refuse(key, "expected its low and its high end");
    value.emplace();
    (*value).*low = both[0];
    (*value).*high = both[1];
  }
  template <class Body>
  void group(std::string_view key, const Body& body) {
    JsonObject object = object_.object(key);
    FieldReader inner(object, remedy_);
    body(inner);
    object.finish();
  }
  template <class T>
  void derived(std::string_view key, const T&) {
    object_.ignore(key);
  }

 private:
  template <class Record>
  void read(JsonObject object, Record& record) const {
    FieldReader inner(object, remedy_);
    fields(inner, record);
    object.finish();
  }
  template <class T>
  [[noreturn]] void refuse_text(std::string_view key, const std::string& found, const T& value) const {
    object_.refuse(key, "'" + found + "' is no " + std::string(noun(value)), std::string(remedy_));
  }
  [[nodiscard]] std::vector<double> numbers(std::string_view key, const Range<double>& range) {
    return object_.numbers(key, range.least, range.most);
  }
  [[nodiscard]] std::vector<std::int64_t> numbers(std::string_view key, const Range<std::int64_t>& range) {
    return object_.integers(key, range.least, range.most);
  }

  JsonObject& object_;
  std::string_view remedy_;
};

}  // namespace fsdp
