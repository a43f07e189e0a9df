// Asks other hosts about the ranks of a job, and answers them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "diagnosis/other_hosts.hpp"
#include "transport/communicator.hpp"

namespace vccl {

/// Call this when a job's default group has been made. Other processes of this user find in the recorder
/// where this process answers.
void know_answering_ranks(const std::string& job, const Communicator& communicator);
/// Call this when that group ends. Does nothing for another job.
void forget_answering_ranks(const std::string& job) noexcept;

/// Returns whether the job of this process has ranks on other hosts that can be asked, and this process is
/// the first rank of its own host.
bool speaks_for_host() noexcept;

/// Answers a question about the job of this process, for CommunicatorConfig::answer. Never throws: whoever
/// asks what cannot be answered gets an answer without parts.
std::vector<std::string> answer_host_question(std::string_view bytes) noexcept;

/// Asks on behalf of this process about its own job, or about a job of this user on this host, whose ranks
/// say in their recorders where they answer.
OtherHosts& other_hosts();

}  // namespace vccl
