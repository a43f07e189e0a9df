#include "transport/state/wait_exchange.hpp"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/signals.hpp"
#include "base/text.hpp"
#include "transport/error.hpp"
#include "transport/support/error_text.hpp"

namespace vccl {
namespace {

// How many records one round reads.
constexpr std::size_t kMostUrgent = 64, kMost = 16;
// How long after a round the next one may begin that is not urgent. The first ones follow each other, because
// processes that wait for each other have often begun to at about the same time.
constexpr Milliseconds kShortPause{250}, kLongPause{500};
constexpr std::uint64_t kRoundsWithoutPause = 10, kRoundsWithShortPauses = 40;
// After this time without an answer the store counts as silent.
constexpr std::chrono::seconds kSilent{2};
constexpr Milliseconds kRetry{1000};

}  // namespace

struct WaitExchange::Shared {
  mutable std::mutex mutex;  // guards everything below; not held while the store is asked
  std::condition_variable changed;
  ConnectStore connect;
  std::optional<Turn> next;
  bool running = false, over = false;
  FarRecords found;
  std::uint64_t rounds = 0;
  std::optional<Clock::time_point> asked_at;  // since when the store is being asked
  Clock::time_point next_at{};
  std::string failure;
};

/// What only the thread uses.
class WaitExchange::Thread {
 public:
  explicit Thread(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  void run() {
    pthread_setname_np(pthread_self(), "vccl far waits");
    while (const auto turn = next()) {
      std::string failure;
      try {
        if (!store_) store_ = shared_->connect();
        round(*turn);
      } catch (const std::exception& error) {
        failure = error.what();
        failure = failure.substr(0, failure.find('\n'));  // torch's errors go on with a stack
        store_.reset();
        written_ = {};
      }
      note_end(failure);
    }
    forget();
  }

 private:
  /// Blocks until there is something to do. Returns nothing when the thread has to end.
  std::optional<Turn> next() {
    std::unique_lock lock(shared_->mutex);
    shared_->changed.wait(lock, [this] { return shared_->over || shared_->next; });
    if (shared_->over) return std::nullopt;
    ++shared_->rounds;
    round_ = shared_->rounds;
    shared_->asked_at = Clock::now();
    return std::exchange(shared_->next, std::nullopt);
  }

  void note_end(const std::string& failure) {
    const auto pause = round_ < kRoundsWithoutPause      ? Milliseconds(0)
                       : round_ < kRoundsWithShortPauses ? kShortPause
                                                         : kLongPause;
    std::lock_guard lock(shared_->mutex);
    shared_->asked_at.reset();
    shared_->failure = failure;
    shared_->next_at = Clock::now() + (failure.empty() ? pause : kRetry);
  }

  void round(const Turn& turn) {
    token_ = turn.token;
    const bool wrote = write(turn);
    const std::size_t count = std::min(turn.wanted.size(), turn.urgent ? kMostUrgent : kMost);
    FarRecords read;
    std::vector<Token> missing;
    for (std::size_t i = 0; i < count; ++i) {
      const Token token = turn.wanted[first_++ % turn.wanted.size()];
      if (auto record = read_one(token))
        read.insert_or_assign(token, std::move(*record));
      else
        missing.push_back(token);
    }
    // What this connection sends arrives in order, so an answer says that the record has come there.
    if (wrote && count == 0) read_one(turn.token);
    std::lock_guard lock(shared_->mutex);
    for (const Token token : missing) shared_->found.erase(token);
    for (auto& [token, record] : read) shared_->found.insert_or_assign(token, std::move(record));
    // What is not wanted any more would only pile up.
    std::erase_if(shared_->found,
                  [&](const auto& entry) { return !std::ranges::count(turn.wanted, entry.first); });
  }

  /// Counts as looks how often the record has been written for which the process has looked since.
  bool write(const Turn& turn) {
    FarRecord record = turn.own;
    const WaitRecord::Copy& own = turn.own.copy;
    const bool same = written_.version == own.version && written_.version > 0;
    const bool looked = turn.urgent && own.looks > written_.looks;
    if (same && !looked && written_.concluded == own.concluded) return false;
    writes_ = same ? writes_ + looked : 0;
    record.copy.looks = writes_;
    store_->set(far_key(turn.token), encode(record));
    written_ = own;
    return true;
  }

  std::optional<FarRecord> read_one(Token token) {
    try {
      FarRecord record = decode_far_record(store_->get(far_key(token), Deadline::in(Milliseconds(0))));
      record.copy.round = round_;
      return record;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timeout) throw;
      return std::nullopt;  // the process does not wait
    }
  }

  void forget() noexcept {
    try {
      if (store_ && token_ != 0) store_->remove(far_key(token_));
    } catch (const std::exception&) {
      // The store has gone, and the record with it.
    }
    store_.reset();
    std::lock_guard lock(shared_->mutex);
    shared_->running = false;
    shared_->changed.notify_all();
  }

  const std::shared_ptr<Shared> shared_;
  std::unique_ptr<Store> store_;
  Token token_ = 0;
  std::uint64_t round_ = 0, writes_ = 0;
  std::size_t first_ = 0;  // of `wanted`, where the next round begins
  WaitRecord::Copy written_;
};

WaitExchange::WaitExchange() : shared_(std::make_shared<Shared>()) {}

void WaitExchange::turn(const ConnectStore& connect, Turn turn) {
  if (!connect) return;
  std::lock_guard lock(shared_->mutex);
  if (shared_->asked_at || (Clock::now() < shared_->next_at && !(turn.urgent && shared_->failure.empty())))
    return;
  shared_->connect = connect;
  shared_->next = std::move(turn);
  shared_->changed.notify_all();
  if (shared_->running) return;
  base::SignalsBlocked blocked;
  try {
    std::thread([shared = shared_] { Thread(shared).run(); }).detach();
    shared_->running = true;
  } catch (const std::system_error& error) {
    shared_->failure = error.what();
  }
}

void WaitExchange::end(Milliseconds patience) noexcept {
  bool running;
  {
    std::lock_guard lock(shared_->mutex);
    running = shared_->running;
    shared_->over = running;
    shared_->changed.notify_all();
  }
  if (running) ended_ = std::exchange(shared_, std::make_shared<Shared>());
  if (!ended_) return;
  std::unique_lock lock(ended_->mutex);
  ended_->changed.wait_for(lock, patience, [this] { return !ended_->running; });
}

FarRecords WaitExchange::found() const {
  std::lock_guard lock(shared_->mutex);
  return shared_->found;
}

std::uint64_t WaitExchange::rounds() const {
  std::lock_guard lock(shared_->mutex);
  return shared_->rounds;
}

std::string WaitExchange::silence() const {
  std::lock_guard lock(shared_->mutex);
  if (!shared_->failure.empty()) return shared_->failure;
  if (!shared_->asked_at || Clock::now() - *shared_->asked_at < kSilent) return {};
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - *shared_->asked_at);
  return base::text("the rendezvous store has not answered for ", duration_text(seconds));
}

}  // namespace vccl
