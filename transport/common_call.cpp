#include "transport/common_call.hpp"

#include <utility>

#include "base/text.hpp"
#include "transport/bootstrap/identity.hpp"
#include "transport/support/protocol.hpp"

namespace vccl {

void agree_on_call(Store& store, const std::string& key, std::uint64_t rank, const std::string& group,
                   const CommonCall& call, Store* notices) {
  const std::string own =
      encode_record({{"call", call.text}, {"lists", encoded_lists(call.lists)}, {"rank", rank}});
  const std::string found = store.compare_set(key, "", own);
  if (found == own) return;
  const msgpack::Value other = read_record(found, -1);
  if (other.at("call").as_string() == call.text) return;
  const Error error(
      ErrorCode::mismatch,
      base::text("rank ", rank, " called ", call.text, " on group ", group, ", but rank ",
                 other.at("rank").as_uint(), " called ", other.at("call").as_string(),
                 ". All ranks of the group must give the same lists in the same order of calls."));
  auto lists = call.lists;
  for (auto& list : decoded_lists(other.at("lists"))) lists.push_back(std::move(list));
  NoticeBoard(notices).post(error, lists);
  throw error;
}

}  // namespace vccl
