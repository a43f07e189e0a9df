// What the flight recorder notes. The structs lie in shared memory as they are here, so a change of one of
// them needs another records::kLayoutVersion.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace vccl {

/// Copies a text into an array of characters, and cuts it between two characters where it does not fit.
/// A text that was cut ends with "...".
void put_text(std::span<char> to, std::string_view text) noexcept;
/// Returns a text that put_text() has written. Whatever another process has written there, the result is
/// valid UTF-8 without control characters.
std::string get_text(std::span<const char> from);

/// The collectives of which a group counts the calls. These are the functions of NCCL that its RAS counts; a
/// barrier is an all_reduce there, and the other collectives are made of messages.
enum class CountedCall : std::uint8_t { none, broadcast, reduce, all_gather, reduce_scatter, all_reduce };
inline constexpr std::size_t kCountedCalls = 5;

/// What a collective does with the elements, in the order of torch's numbers; `none` stands before them.
enum class FlightReduction : std::uint8_t {
  none,
  sum,
  average,
  product,
  minimum,
  maximum,
  bit_and,
  bit_or,
  bit_xor,
  premul_sum
};

/// One operation of a group on this rank. Times are nanoseconds of the steady clock, and 0 while unknown.
struct FlightEntry {
  static constexpr std::size_t kMostTensors = 8, kMostSizes = 26;
  static constexpr std::size_t kMostLines = 1024;  // of a process
  /// The bits of `flags`.
  enum Flag : std::uint16_t {
    kMessage = 1,      // a send or a receive, or a batch that has nothing else
    kRetired = 2,      // the operation is over. One that is over and has no completed_ns has failed.
    kReplayed = 4,     // a collective of a graph, in one of its replays
    kBatch = 8,        // stands for a batch of calls that were coalesced, whose entries come before it
    kSizesCut = 16,    // there were more tensors or sizes than an entry can list
    kSends = 32,       // a message that this rank sends
    kAsync = 64,       // the call has returned a handle
    kInBatch = 128,    // one of the calls that were coalesced
    kAnySource = 256,  // a receive that was called without a source
    kHashed = 512,     // input_hash and output_hash are known
  };

  std::uint64_t number = 0;                   // counts the entries of the process from 0
  std::uint32_t group = 0, group_serial = 0;  // the place in the table of groups, and FlightGroup::serial
  std::uint64_t collective_sequence = 0;      // of the group, as all ranks count
  std::uint64_t message_sequence = 0;         // of the group, as this rank counts
  std::uint64_t operation = 0;                // counts the single calls of the group on this rank
  // Counts the group's collectives on cards as all ranks do, whether they coalesce them or not, and goes on
  // counting when a process makes another default group. 0 unless VCCL_CHECK=order is on.
  std::uint64_t place_in_order = 0;
  std::int64_t created_ns = 0, started_ns = 0, completed_ns = 0;
  std::int64_t timeout_ms = 0;
  std::uint64_t thread = 0;        // of the call, as pthread_self() names it
  std::int32_t thread_number = 0;  // of the call, as the kernel numbers it
  std::int32_t peer = -1;          // the rank of the group at the other end of a message; -1: any
  std::int32_t tag = 0;
  std::int32_t root = -1;        // the rank of the group that a collective goes out from, or ends at
  std::uint32_t details = 0;     // how many numbers of FlightDetails there are
  std::uint32_t calls = 0;       // of a batch: how many entries before it are its calls
  std::uint64_t details_at = 0;  // and which number of the process is the first of them
  double factor = 1;             // of FlightReduction::premul_sum, if the host knows it
  // Of the elements before and after, in the order of the tensors. A batch has them in the entries of its
  // calls.
  std::uint64_t input_hash = 0, output_hash = 0;
  std::int16_t card = -1;  // -1: the CPU
  std::uint16_t flags = 0;
  std::uint16_t inputs = 0, outputs = 0;  // how many tensors the call has
  std::uint16_t line = 0;  // of the program, as FlightRecorder::line_of() numbers them; 0 if not known
  std::uint8_t listed_inputs = 0, listed_outputs = 0;  // and how many of them are listed below
  std::uint8_t listed_sizes = 0;
  CountedCall counted = CountedCall::none;
  FlightReduction reduction = FlightReduction::none;
  std::array<char, 40> name{};  // of the call: "all_reduce"
  std::array<char, 16> thread_name{};
  std::array<std::uint8_t, kMostTensors> dtypes{};      // torch's numbers of the dtypes
  std::array<std::uint8_t, kMostTensors> dimensions{};  // how many of the sizes are a tensor's
  std::array<std::uint8_t, 1> unused{};
  std::array<std::int64_t, kMostSizes> sizes{};  // of the inputs, and then of the outputs

  bool is(Flag flag) const noexcept { return (flags & flag) != 0; }
  /// Lists one more tensor. All inputs have to be added before the first output. Sets kSizesCut if there is
  /// no room.
  void add_input(std::uint8_t dtype, std::span<const std::int64_t> shape) noexcept;
  void add_output(std::uint8_t dtype, std::span<const std::int64_t> shape) noexcept;
  /// Returns whether all counts are within their bounds, so that a reader may use them as they are.
  bool is_sound() const noexcept;

 private:
  bool list(std::uint8_t dtype, std::span<const std::int64_t> shape) noexcept;
};

/// A group of this process.
struct FlightGroup {
  static constexpr std::size_t kMostRanks = 250;
  /// The values of `form`.
  enum Form : std::uint32_t {
    kListed,       // `ranks` lists the ranks, or the first of them if there are more than kMostRanks
    kProgression,  // `ranks` has the first rank and the distance from each rank to the next
  };

  std::uint64_t serial = 0;  // counts the groups of the process from 1
  std::uint32_t open = 0;    // 1 until the group is destroyed
  std::uint32_t rank = 0, size = 0;
  std::uint32_t form = kListed;
  std::int64_t opened_ns = 0;  // of the steady clock
  std::array<char, 96> name{}, description{};
  std::array<std::uint32_t, kMostRanks> ranks{};  // the ranks' numbers in the job

  void set_ranks(std::span<const std::uint64_t> numbers) noexcept;
  /// Returns the number in the job of a rank of the group, or -1 if it is not known.
  std::int64_t in_job(std::uint32_t member) const noexcept;
  /// Returns how many ranks' numbers in_job() knows.
  std::uint32_t known_ranks() const noexcept;
  bool is_sound() const noexcept;
};

/// The process itself.
struct FlightProcess {
  std::uint64_t birth = 0;                // base::birth_of()
  std::int64_t wall_minus_steady_ns = 0;  // added to a time of an entry, this gives the time since 1970
  std::int32_t pid = 0;
  std::int32_t rank = -1, size = 0;  // in the job; -1 before the first group
  std::int32_t unused = 0;
  std::array<char, 64> job{};      // ProcessGroupVccl::id() of the default group
  std::array<char, 64> host{};     // the name of the host, or VCCL_HOSTID
  std::array<char, 16> backend{};  // "vccl", or "nccl" in pose
  std::array<char, 96> program{};  // the beginning of the command line
  // How to ask the process questions (AnsweringRank): endpoint, key and token, with a blank after each. Empty
  // for a job on one host.
  std::array<char, 192> answers{};
  std::uint64_t faults = 0;            // how many faults of a plan have struck (faults/faults.hpp)
  std::array<char, 120> last_fault{};  // "kill during all_reduce 3 of group default_pg, step 2"
};

}  // namespace vccl
