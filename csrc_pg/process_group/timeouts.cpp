// For how long operations of a group may wait, and what happens then.
#include "csrc_pg/process_group/process_group.hpp"

namespace vccl {

using std::chrono::milliseconds;

milliseconds ProcessGroupVccl::effective(milliseconds timeout) const {
  return (timeout == c10d::kUnsetTimeout ? timeout_.load() : timeout) + extra_time_->now();
}

void ProcessGroupVccl::addEphemeralTimeout(const milliseconds& time) {
  extra_time_->add(time);
}

void ProcessGroupVccl::setTimeout(milliseconds timeout) {
  timeout_.store(timeout);
  options_->timeout = timeout;
}

// ProcessGroupNCCL aborts its communicators when wait(timeout) has waited in vain.
WorkVccl::WaitRules ProcessGroupVccl::wait_rules(c10::Device device, milliseconds timeout) const {
  return {timeout, nccl_.on() && !device.is_cpu() ? communicators_.to_abort() : nullptr};
}

bool ProcessGroupVccl::verify_work_timeout(const c10::intrusive_ptr<c10d::Work>& work,
                                           const milliseconds& timeout) {
  const auto own = c10::dynamic_intrusive_pointer_cast<WorkVccl>(work);
  TORCH_CHECK_TYPE(own, "_verify_work_timeout takes a Work of a collective or message of this backend");
  return own->timeout() == timeout;
}

}  // namespace vccl
