#include "csrc_pg/explanations/other_hosts.hpp"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "base/clock.hpp"
#include "base/fork.hpp"
#include "base/text.hpp"
#include "csrc_pg/dumps/own_flight_recorder.hpp"
#include "csrc_pg/explanations/host_messages.hpp"
#include "diagnosis/job.hpp"
#include "transport/questions.hpp"

namespace vccl {
namespace {

// How long one rank has for its answer, which takes it a tenth of that on an idle machine.
constexpr Milliseconds kPatience{500};
// How long all questions of one observation may take, and how many are under way at the same time.
constexpr Milliseconds kMostPatience{1500};
constexpr std::size_t kMostAtOnce = 64;
// A host is silent when so many of its ranks have not answered.
constexpr int kMostAskedOfHost = 3;

struct Known {
  std::mutex mutex;  // guards the members
  std::string job;
  std::vector<AnsweringRank> ranks;
  bool first_of_host = false;
};

Known& known() {
  static base::OnePerProcess<Known> one;
  return one.get();
}

/// Returns what know_answering_ranks() was told of the job, or nothing of another one.
std::vector<AnsweringRank> known_ranks(const std::string& job) {
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  return all.job == job ? all.ranks : std::vector<AnsweringRank>();
}

/// Returns where the process answers, as its recorder says.
std::optional<AnsweringRank> answering_rank_of(const FlightProcess& process) {
  std::string text = get_text(process.answers);
  std::vector<std::string> words;
  for (std::size_t at; (at = text.find(' ')) != std::string::npos; text.erase(0, at + 1))
    words.push_back(text.substr(0, at));
  if (words.size() != 3) return {};
  return AnsweringRank{process.rank, get_text(process.host), words[0], words[1], words[2]};
}

Question question_to(const AnsweringRank& rank, const HostQuestion& question) {
  return {rank, encode(question)};
}

/// Returns who answers in the job, as a rank of it on this host says.
std::vector<AnsweringRank> ask_for_ranks(const Job& job) {
  std::vector<Question> questions;
  for (const auto& [number, rank] : job.ranks) {
    const auto at = answering_rank_of(rank.snapshot.process);
    if (rank.far || !may_run(rank.activity) || !at || questions.size() == kMostAskedOfHost) continue;
    questions.push_back({*at, encode(HostQuestion{HostQuestion::Kind::ranks, job.id, false, {}, {}})});
  }
  std::vector<AnsweringRank> ranks;
  for (const auto& answer : ask(questions, kPatience)) {
    if (!answer || answer->empty()) continue;
    for (const auto& part : *answer) decode_answering_ranks(part, ranks);
    break;
  }
  return ranks;
}

std::vector<AnsweringRank> answering_ranks(const Job& job) {
  auto ranks = known_ranks(job.id);
  return ranks.empty() ? ask_for_ranks(job) : ranks;
}

/// Returns what tells a rank's host from others. Several hosts may have the same name, or the same address.
std::string place_of(const AnsweringRank& rank) {
  return rank.host + ' ' + rank.endpoint.substr(0, rank.endpoint.rfind(':'));
}

/// Asks about ranks of one job, one rank of each host at a time.
class Observation {
 public:
  Observation(const Job& job, bool activity)
      : question_{HostQuestion::Kind::processes, job.id, activity, {}, {}} {
    for (const AnsweringRank& rank : answering_ranks(job))
      if (!job.ranks.contains(rank.rank)) hosts_[place_of(rank)].ranks.push_back(rank);
    // Those who ask at the same time do not all begin with the same rank.
    for (auto& [place, host] : hosts_)
      std::ranges::rotate(host.ranks, host.ranks.begin() + ::getpid() % std::ssize(host.ranks));
  }

  OtherHosts::Answers run() {
    const auto deadline = Deadline::in(kMostPatience);
    while (!deadline.passed()) {
      const auto asked = choose();
      if (asked.empty()) break;
      std::vector<Question> questions;
      for (const auto& [host, rank] : asked) questions.push_back(question_to(*rank, question_));
      auto answers = ask(questions, kPatience);
      for (std::size_t i = 0; i < asked.size(); ++i)
        if (answers[i]) add(*asked[i].first, asked[i].second->rank, *answers[i]);
    }
    list_unknown();
    return std::move(result_);
  }

 private:
  struct Host {
    std::vector<AnsweringRank> ranks;
    int asked = 0;
    bool answered = false;
  };

  /// Returns whom to ask next.
  std::vector<std::pair<Host*, const AnsweringRank*>> choose() {
    std::vector<std::pair<Host*, const AnsweringRank*>> chosen;
    for (auto& [place, host] : hosts_) {
      const auto next = static_cast<std::size_t>(host.asked);
      if (host.answered || host.asked == kMostAskedOfHost || next == host.ranks.size()) continue;
      if (chosen.size() == kMostAtOnce) break;
      chosen.emplace_back(&host, &host.ranks[next]);
      ++host.asked;
    }
    return chosen;
  }

  void add(Host& host, int asked, const std::vector<std::string>& parts) {
    const auto now = base::monotonic_ns();
    for (const auto& part : parts) {
      try {
        auto process = decode_process(part, now);
        known_.insert(process.snapshot.process.rank);
        result_.processes.push_back(std::move(process));
      } catch (const FlightRefused&) {  // another version of vccl has written it
      } catch (const Error&) {
      }
    }
    // A rank that can look at its host finds itself.
    host.answered = known_.contains(asked);
  }

  void list_unknown() {
    for (const auto& [place, host] : hosts_) {
      UnknownRanks unknown{host.ranks.front().host, {}, !host.answered};
      for (const AnsweringRank& rank : host.ranks)
        if (!known_.contains(rank.rank)) unknown.ranks.push_back(rank.rank);
      if (!unknown.ranks.empty()) result_.unknown.push_back(std::move(unknown));
    }
  }

  const HostQuestion question_;
  std::map<std::string, Host> hosts_;  // by place_of()
  std::set<int> known_;
  OtherHosts::Answers result_;
};

class Asker final : public OtherHosts {
 public:
  Answers observe(const Job& job, bool activity) noexcept override {
    try {
      return Observation(job, activity).run();
    } catch (const std::exception&) {
      return {};  // without a free descriptor, for instance, nothing is known
    }
  }

  /// Each host is asked through the first of the ranks, which answers if any of them does.
  std::map<int, Stacks> stacks(const Job& job, const std::vector<int>& ranks,
                               std::chrono::milliseconds patience) noexcept override {
    std::map<int, Stacks> result;
    try {
      const auto answering = answering_ranks(job);
      std::map<std::string, std::pair<const AnsweringRank*, std::vector<int>>> hosts;
      for (const int rank : ranks) {
        const auto found = std::ranges::find(answering, rank, &AnsweringRank::rank);
        if (found == answering.end()) continue;
        auto& [asked, wanted] = hosts[place_of(*found)];
        if (!asked) asked = &*found;
        wanted.push_back(rank);
      }
      std::vector<Question> questions;
      for (const auto& [place, host] : hosts) {
        if (questions.size() == kMostAtOnce) break;
        const HostQuestion question{HostQuestion::Kind::stacks, job.id, false, host.second, patience};
        questions.push_back(question_to(*host.first, question));
      }
      for (const auto& answer : ask(questions, patience + kPatience)) {
        if (!answer) continue;
        for (const auto& part : *answer) {
          auto [rank, stacks] = decode_stacks(part);
          if (std::ranges::count(ranks, rank)) result.insert_or_assign(rank, std::move(stacks));
        }
      }
    } catch (const std::exception&) {
      // What has come so far may say enough.
    }
    return result;
  }
};

std::vector<std::string> processes_of(const HostQuestion& question) {
  std::vector<std::string> parts;
  for (const auto& process : observe_job(question.job, question.activity))
    parts.push_back(encode(process, base::monotonic_ns()));
  return parts;
}

std::vector<std::string> stacks_of(const HostQuestion& question) {
  std::vector<int> ranks;
  std::vector<pid_t> pids;
  for (const auto& process : observe_job(question.job, false)) {
    const int rank = process.snapshot.process.rank;
    if (process.activity == Activity::gone || !std::ranges::count(question.ranks, rank)) continue;
    ranks.push_back(rank);
    pids.push_back(process.pid);
  }
  const auto stacks = ask_for_stacks(pids, question.patience);
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    if (stacks[i]) parts.push_back(encode_stacks(ranks[i], *stacks[i]));
  return parts;
}

std::vector<std::string> ranks_of(const HostQuestion& question) {
  return encode(known_ranks(question.job));
}

}  // namespace

void know_answering_ranks(const std::string& job, const Communicator& communicator) {
  auto ranks = communicator.answering_ranks();
  if (ranks.empty()) return;
  int first = 0;
  while (communicator.host_of(first) != communicator.host_of(communicator.rank())) ++first;
  own_flight_recorder().note_answers(
      base::text(ranks[0].endpoint, " ", ranks[0].key, " ", ranks[0].token, " "));
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  all.job = job;
  all.ranks = std::move(ranks);
  all.first_of_host = first == communicator.rank();
}

bool speaks_for_host() noexcept {
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  return all.first_of_host && !all.ranks.empty();
}

void forget_answering_ranks(const std::string& job) noexcept {
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  if (all.ranks.empty() || all.job != job) return;
  all.job.clear();
  all.ranks.clear();
  own_flight_recorder().note_answers("");
}

std::vector<std::string> answer_host_question(std::string_view bytes) noexcept {
  try {
    const HostQuestion question = decode_question(bytes);
    if (known_ranks(question.job).empty()) return {};  // the job of another process, or one that is over
    switch (question.kind) {
      case HostQuestion::Kind::processes:
        return processes_of(question);
      case HostQuestion::Kind::stacks:
        return stacks_of(question);
      case HostQuestion::Kind::ranks:
        return ranks_of(question);
    }
  } catch (const std::exception&) {
    // Whoever asks learns nothing, and asks somebody else.
  }
  return {};
}

OtherHosts& other_hosts() {
  static Asker asker;
  return asker;
}

}  // namespace vccl
