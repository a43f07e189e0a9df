// What ranks ask other hosts about a job, and what these answer, as bytes.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "diagnosis/other_hosts.hpp"
#include "transport/questions.hpp"

namespace vccl {

struct HostQuestion {
  enum class Kind : std::uint8_t {
    processes,  // of the job on the host: an answer has a part for each
    stacks,     // of these ranks: an answer has a part for each that has one
    ranks,      // that answer questions
  };

  Kind kind = Kind::processes;
  std::string job;
  bool activity = false;                  // of processes: watch what they do
  std::vector<int> ranks;                 // whose stacks
  std::chrono::milliseconds patience{0};  // for the stacks
};

std::string encode(const HostQuestion& question);
/// Throws Error(protocol).
HostQuestion decode_question(std::string_view bytes);

/// `now_ns` is the steady clock of the host that encodes, or decodes.
std::string encode(const ObservedProcess& process, std::int64_t now_ns);
/// Throws Error(protocol), or FlightRefused for a process of another version.
ObservedProcess decode_process(std::string_view bytes, std::int64_t now_ns);

/// Leaves out what is beyond kMostThreads threads, and the middle of stacks deeper than kMostFrames.
std::string encode_stacks(int rank, const Stacks& stacks);
/// Throws Error(protocol).
std::pair<int, Stacks> decode_stacks(std::string_view bytes);

/// Returns parts of an answer with many ranks each.
std::vector<std::string> encode(const std::vector<AnsweringRank>& ranks);
/// Appends the ranks of one part. Throws Error(protocol).
void decode_answering_ranks(std::string_view bytes, std::vector<AnsweringRank>& ranks);

}  // namespace vccl
