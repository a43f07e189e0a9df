#include "csrc_pg/collectives/selection/preference.hpp"

#include <cctype>
#include <map>
#include <mutex>
#include <string_view>

#include "base/text.hpp"

namespace vccl {

namespace {

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  std::vector<Preference> parse() {
    do {
      if (at_end() && !found_.empty()) break;  // a ";" at the end
      parse_collective();
    } while (accept(';'));
    if (!at_end()) fail(base::text("\"", text_[at_], "\" where \",\" or \";\" should be"));
    return std::move(found_);
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw Error(ErrorCode::invalid,
                base::text("VCCL_ALGO is \"", text_, "\", and at character ", at_ + 1, ": ", why,
                           ". An example: all_reduce:oneshot[0-4K],direct[4K-1M],ring;broadcast:ring"));
  }

  void skip_blanks() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool at_end() {
    skip_blanks();
    return at_ == text_.size();
  }
  bool accept(char wanted) {
    if (at_end() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) fail(base::text("\"", wanted, "\" should be here"));
  }
  std::string word() {
    skip_blanks();
    const std::size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_'))
      ++at_;
    return text_.substr(begin, at_ - begin);
  }

  void parse_collective() {
    skip_blanks();
    const std::size_t begin = at_;
    const std::string name = word();
    std::string names;
    for (int i = 0; i <= int(Collective::barrier); ++i) {
      const auto collective = Collective(i);
      names += base::text(i > 0 ? ", " : "", to_string(collective));
      if (name != to_string(collective)) continue;
      expect(':');
      do parse_algorithm(collective);
      while (accept(','));
      return;
    }
    at_ = begin;
    fail(base::text("there is no collective \"", name, "\"; there are ", names));
  }

  void parse_algorithm(Collective collective) {
    skip_blanks();
    const std::size_t begin = at_;
    const std::string name = word();
    std::string names;
    const Algorithm* found = nullptr;
    for (const Algorithm& algorithm : algorithms()) {
      if (algorithm.collective != collective) continue;
      if (names.find(algorithm.name) == std::string::npos)
        names += base::text(names.empty() ? "" : ", ", algorithm.name);
      if (name == algorithm.name && !found) found = &algorithm;
    }
    if (!found) {
      at_ = begin;
      fail(base::text(to_string(collective), " has no algorithm \"", name, "\"; it has ", names));
    }
    Preference preference{found, 0, kAnyLength};
    if (accept('[')) {
      preference.min_bytes = parse_size(0);
      expect('-');
      preference.max_bytes = parse_size(kAnyLength);
      expect(']');
      if (preference.min_bytes > preference.max_bytes) fail("the range ends before it begins");
    }
    found_.push_back(preference);
  }

  std::size_t parse_size(std::size_t if_none) {
    skip_blanks();
    if (at_ == text_.size() || !std::isdigit(static_cast<unsigned char>(text_[at_]))) return if_none;
    std::size_t number = 0;
    for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])); ++at_)
      if (__builtin_mul_overflow(number, std::size_t(10), &number) ||
          __builtin_add_overflow(number, std::size_t(text_[at_] - '0'), &number))
        fail("the size is too large");
    constexpr std::string_view kUnits = "KMG";
    const auto unit = at_ < text_.size() ? kUnits.find(text_[at_]) : std::string_view::npos;
    if (unit == std::string_view::npos) return number;
    if (__builtin_mul_overflow(number, std::size_t(1) << (10 * (unit + 1)), &number))
      fail("the size is too large");
    ++at_;
    return number;
  }

  const std::string& text_;
  std::size_t at_ = 0;
  std::vector<Preference> found_;
};

}  // namespace

const std::vector<Preference>& preferences(const std::string& text) {
  static const std::vector<Preference> kNone;
  if (text.empty()) return kNone;
  // Every call asks for this, with the same text every time.
  thread_local std::string last_text;
  thread_local const std::vector<Preference>* last = nullptr;
  if (last && last_text == text) return *last;
  static std::mutex mutex;
  static auto* known = new std::map<std::string, std::vector<Preference>>;  // outlives every thread
  const std::lock_guard lock(mutex);
  auto found = known->find(text);
  if (found == known->end()) found = known->emplace(text, Parser(text).parse()).first;
  last_text = text;
  last = &found->second;
  return *last;
}

}  // namespace vccl
