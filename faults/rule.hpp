// One line of a plan of faults: where it strikes, and what it does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vccl::faults {

/// What a fault does.
enum class Kind : std::uint8_t {
  kill,
  segv,
  abort,
  exit,
  raise,
  stall,
  late,
  stop,
  slow,
  corrupt,
  nan,
  oom,
  sdc,
  lose_host,
  reset_link,
  cut_link,
  drop_link,
  delay_link,
  loss_link,
  full_disk,
  no_descriptors,
};

/// When a fault strikes: before the operation, when a part of its blocks has moved, or after it.
enum class Moment : std::uint8_t { before, during, after };

/// Return the word of a plan for a kind and for a moment: "lose-host", "during".
std::string_view word_of(Kind kind) noexcept;
std::string_view word_of(Moment moment) noexcept;
/// Return what a word stands for. Throw std::invalid_argument if it stands for nothing.
Kind kind_of(std::string_view word);
Moment moment_of(std::string_view word);

/// Returns whether a fault of this kind ends or stops the process, so that it has to be told beforehand.
bool ends_process(Kind kind) noexcept;

/// Returns whether a fault of this kind strikes the links to other hosts.
bool is_of_links(Kind kind) noexcept;

/// Numbers from `first` to `last`, both included.
struct Range {
  std::int64_t first = 0, last = 0;
};

/// A rule. Empty texts and lists, and numbers that are not given, match everything.
struct Rule {
  std::vector<Range> ranks, steps, restarts;
  std::string host, group, op;
  std::string phase;  // empty: the rule is for operations, and not for phases
  // Of the places that match on a rank, the n-th, and from there on (or from the first) each `every`-th.
  std::uint64_t n = 0, every = 0;  // 0: not given
  double probability = 1;
  Moment at = Moment::before;
  Kind kind = Kind::kill;
  double amount = 0;  // seconds, milliseconds, bits, a factor, a probability or an exit status
  std::string type;   // of the exception
};

/// A place at which a fault may strike.
struct Site {
  std::string_view op = {};     // "all_reduce"; for a phase, empty
  std::string_view phase = {};  // "init"; for an operation, empty
  std::string_view group = {}, description = {};
  std::uint64_t sequence = 0;
  // Of the operation's buffers on this rank: whether there is one that it reads or writes, and whether its
  // elements can be NaN.
  bool reads = false, writes = false, floating = false;
};

/// Returns whether an operation is of the kind that a rule names. "all_gather" stands for every form of it,
/// such as all_gather_into_tensor.
bool is_named(std::string_view op, std::string_view by_rule) noexcept;

}  // namespace vccl::faults
