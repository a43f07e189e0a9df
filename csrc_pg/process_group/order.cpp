// VCCL_CHECK=order: at which place this rank calls a collective, and whether the ranks' calls close a circle.
#include <string>

#include "base/text.hpp"
#include "csrc_pg/explanations/circles.hpp"
#include "csrc_pg/operations/group_order.hpp"
#include "csrc_pg/process_group/process_group.hpp"
#include "transport/error.hpp"

namespace vccl {

void ProcessGroupVccl::put_in_order(Request& request, CollectivePlan& plan) {
  const auto place = order_->next(plan.calls().size());
  plan.set_order(place.number);
  if (!plan.calls().empty()) request.place_in_order = place.first;
  const auto circle = circle_of_calls(GroupOrder::uses_several() ? When::in_turn : When::if_first_of_host);
  // Ranks learn of a failure at different times, and what they call then is in no order.
  if (circle.empty() || GroupOrder::any_failed()) return;
  const auto text = told_of(circle);
  order_->note_failure();
  communicators_.abort(text);
  throw Error(ErrorCode::mismatch, text);
}

// Whichever rank comes last sees all calls of all ranks.
std::string ProcessGroupVccl::circle_at_the_end() const {
  if (!order_ || options_->call != "init_process_group" || GroupOrder::any_failed()) return {};
  const auto circle = circle_of_calls(When::at_once);
  return circle.empty() ? circle : told_of(circle);
}

std::string ProcessGroupVccl::told_of(const std::string& circle) const {
  return base::text(names().rank(rank_), " has found calls of several groups that wait for each other. ",
                    circle);
}

}  // namespace vccl
