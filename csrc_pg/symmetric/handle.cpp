#include "csrc_pg/symmetric/handle.hpp"

#include <utility>

#include <c10/util/env.h>

#include "base/text.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/gil.hpp"
#include "csrc_device/torch/streams.hpp"

namespace vccl::symmetric {

Handle::Handle(ProcessGroupVccl& group, int card, std::shared_ptr<Connection> connection)
    : card_(card),
      connection_(std::move(connection)),
      group_(c10::intrusive_ptr<ProcessGroupVccl>::unsafe_reclaim_from_nonowning(&group)) {
  for (const auto& peer : connection_->peers()) {
    buffers_.push_back(peer.buffer->data());
    pads_.push_back(peer.words());
  }
  for (int rank = 0; rank < group.getSize(); ++rank)
    global_ranks_.push_back(static_cast<int>(group.names().in_job(rank)));
}

Handle::~Handle() {
  if (vdev::in_bad_fork()) return;
  const vdev::WithoutGil no_gil;
  // Tasks that are still queued may use views of the peers' memory, which goes away with the connection.
  vdev::card(card_).drain_program_streams(vdev::Captured::is_left_out);
  connection_.reset();
}

bool Handle::is_of(const ProcessGroupVccl& group) const {
  const auto own = group_.lock();
  return own.get() == &group && !connection_->members().communicator.expired();
}

std::string Handle::freed_text(int rank) const {
  const auto& names = connection_->members().names;
  return base::text(
      names.of_group(rank), " has freed its part of ", connection_->text(), ", which ",
      names.rank(connection_->members().rank),
      " goes on to use. Keep the tensor, or its handle, on every rank until all have done with it.");
}

std::vector<void*> Handle::get_buffer_ptrs() {
  return buffers_;
}

std::vector<void*> Handle::get_signal_pad_ptrs() {
  const auto wanted = c10d::symmetric_memory::get_signal_pad_size();
  TORCH_CHECK(wanted <= connection_->pad_bytes(), "set_signal_pad_size(", wanted, ") was called after ",
              connection_->text(), " was made with a signal pad of ", connection_->pad_bytes(),
              " bytes. Set the size before the first rendezvous.");
  return pads_;
}

bool Handle::has_multicast_support() {
  return !c10::utils::check_env("TORCH_SYMM_MEM_DISABLE_MULTICAST").value_or(false);
}

c10::Device Handle::get_device() {
  return vdev::device_of(card_);
}

void Handle::check_channel(int channel) const {
  // torch's error for CUDA begins like this.
  TORCH_CHECK(channel >= 0 && channel < connection_->channels(),
              "The maximum supported channel for barrier(), put_signal() and wait_signal() is ",
              connection_->channels() - 1, " (got ", channel, "): the signal pad of ", connection_->text(),
              " has channels from 0 on. A larger pad has more (set_signal_pad_size).");
}

void Handle::launch(const char* what, int rank, int channel, std::size_t timeout_ms, vdev::Start start,
                    SignalTask::Body body, const std::function<bool()>& arrived) {
  check_channel(channel);
  TORCH_CHECK(rank >= 0 && rank < get_world_size(), what, ": rank ", rank,
              " does not exist: it must be in [0, ", get_world_size(), "), the ranks of the group");
  // What a rank has given before it freed its memory can still be taken.
  TORCH_CHECK(!connection_->is_closed(rank) || (arrived && arrived()), what, ": ", freed_text(rank));
  const auto group = group_.lock();
  TORCH_CHECK(group, what, ": the group of ", connection_->text(), " was destroyed");
  const auto timeout = timeout_ms == 0 ? group->timeout() : Milliseconds(timeout_ms);
  launch_signals(card_, connection_, base::text(what, " (channel ", channel, ")"), timeout, start,
                 std::move(body));
}

void Handle::barrier(int channel, std::size_t timeout_ms) {
  launch(
      "barrier", get_rank(), channel, timeout_ms, vdev::Start::kByWaiter,
      [channel](Connection& connection, const Deadline& deadline) { connection.barrier(channel, deadline); });
}

void Handle::put_signal(int dst_rank, int channel, std::size_t timeout_ms) {
  launch("put_signal", dst_rank, channel, timeout_ms, vdev::Start::kAtOnce,
         [dst_rank, channel](Connection& connection, const Deadline& deadline) {
           connection.put_signal(dst_rank, channel, deadline);
         });
}

void Handle::wait_signal(int src_rank, int channel, std::size_t timeout_ms) {
  launch(
      "wait_signal", src_rank, channel, timeout_ms, vdev::Start::kByWaiter,
      [src_rank, channel](Connection& connection, const Deadline& deadline) {
        connection.wait_signal(src_rank, channel, deadline);
      },
      [&] { return connection_->is_signalled(src_rank, channel); });
}

}  // namespace vccl::symmetric
