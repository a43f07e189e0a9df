#include "transport/state/failure_channel.hpp"

#include "base/text.hpp"
#include "transport/shared/flags.hpp"

namespace vccl {

void FailureChannel::fail(ErrorCode code, const std::string& what) noexcept {
  if (!failure_.record(code, what)) return;
  group_.log.warn(base::text(to_string(code), ": ", what));
  const HostGroup& host = group_.host;
  for (int i = 0; i < static_cast<int>(host.ranks.size()); ++i) wake(host.line(i));
  for (std::size_t i = 0; i < host.ranks.size(); ++i) wake_messages(host.messages().line(i), true);
  if (spread_) spread_();
}

void FailureChannel::fail_for_end(ErrorCode code, const std::string& what) noexcept {
  if (happened()) return;
  if (listen_) {
    listen_();
    if (happened()) return;
  }
  std::string dead;
  const auto add = [&dead](const std::string& more) { dead += (dead.empty() ? "" : "; ") + more; };
  for (int other = 0; other < group_.size; ++other) {
    if (other == group_.rank || what.starts_with(base::text("rank ", group_.names.in_job(other), " (")))
      continue;
    const auto end = group_.end_of(other);
    if (end && end->how != RankEnd::How::left) add(end->text(group_.names, other));
  }
  if (group_.earlier) {
    if (const std::string deaths = group_.earlier->deaths(); !deaths.empty()) add(deaths);
  }
  if (dead.empty()) return fail(code, what);
  fail(ErrorCode::peer_dead,
       code == ErrorCode::peer_dead ? base::text(what, "; ", dead) : base::text(dead, "; ", what));
}

void FailureChannel::raise(ErrorCode code, const std::string& what) {
  fail(code, what);
  throw error();
}

void FailureChannel::raise_for_end(ErrorCode code, const std::string& what) {
  fail_for_end(code, what);
  throw error();
}

void FailureChannel::raise_interrupted(const std::string& by, const std::string& wait) {
  raise(ErrorCode::aborted, base::text(group_.own_text(), " was interrupted by ", by, " while it waited for ",
                                       wait, ", and aborted the group"));
}

std::string FailureChannel::left_text(int rank, const std::string& reason) const {
  const std::string text = base::text(group_.rank_text(rank), " left group ", group_.name);
  return reason.empty() ? text : base::text(text, " (after a failure elsewhere: ", reason, ")");
}

std::string FailureChannel::left_text_of_index(int index) const {
  return left_text(group_.host.ranks[static_cast<std::size_t>(index)],
                   group_.host.line(index).leave_reason.read());
}

void FailureChannel::receive() const {
  if (receive_) receive_();
}

void FailureChannel::check_meeting() const {
  if (look_at_meeting_) look_at_meeting_();
}

void FailureChannel::await_reason() const {
  if (look_for_reason_) look_for_reason_();
}

void FailureChannel::set_links(std::function<void()> receive, std::function<void()> listen,
                               std::function<void()> spread) {
  receive_ = std::move(receive);
  listen_ = std::move(listen);
  spread_ = std::move(spread);
}

void FailureChannel::set_meeting(std::function<void()> look, std::function<void()> look_for_reason) {
  look_at_meeting_ = std::move(look);
  look_for_reason_ = std::move(look_for_reason);
}

}  // namespace vccl
