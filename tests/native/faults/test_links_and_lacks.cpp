// Faults of links are handed on to who knows links, and a lack of resources fails one call of this project.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "base/lack.hpp"
#include "base/sealed_memory.hpp"
#include "base/system_calls.hpp"
#include "faults/faults.hpp"
#include "tests/native/check.hpp"

using namespace vccl::faults;

namespace {

std::vector<Fault> handed_on;
int healed = 0;

std::string strike_links(const Fault& fault) {
  handed_on.push_back(fault);
  return fault.kind == Kind::drop_link ? "there is no link" : "";
}

void heal_links() noexcept {
  ++healed;
}

void prepare() {
  set_handlers({.strike_links = &strike_links, .heal_links = &heal_links});
  handed_on.clear();
  healed = 0;
}

/// Switches a plan of one rule on while it lives.
class Switched {
 public:
  explicit Switched(const Rule& rule) { switch_on(std::make_shared<Plan>(std::vector{rule}, 7)); }
  ~Switched() { switch_on(nullptr); }
};

void come_by(Moment moment) {
  if (const auto strikes = decide({.op = "all_reduce", .sequence = 3})) strikes->strike(moment);
}

std::vector<Struck> all_struck() {
  std::uint64_t count = 0;
  return struck(count);
}

/// Returns the error number of a call, or 0 if it has succeeded.
template <class Call>
int error_of(Call call) {
  try {
    call();
    return 0;
  } catch (const base::SystemError& error) {
    return error.code().value();
  }
}

void make_memory() {
  base::make_sealed_memory("test", 4096);
}

}  // namespace

TEST(every_kind_has_a_word) {
  for (int number = 0; number <= static_cast<int>(Kind::no_descriptors); ++number) {
    const auto kind = static_cast<Kind>(number);
    CHECK(kind_of(word_of(kind)) == kind);
    CHECK_EQ(is_of_links(kind), word_of(kind).ends_with("-link"));
  }
}

TEST(faults_of_links_are_handed_on_with_their_numbers) {
  prepare();
  const std::size_t before = all_struck().size();
  for (const Kind kind : {Kind::reset_link, Kind::cut_link, Kind::delay_link, Kind::loss_link}) {
    const Switched on({.n = 1, .at = Moment::during, .kind = kind, .amount = 0.25});
    come_by(Moment::during);
    come_by(Moment::during);  // the second place of a rule for the first
    CHECK(handed_on.back().kind == kind && handed_on.back().amount == 0.25);
  }
  CHECK_EQ(handed_on.size(), std::size_t{4});
  CHECK_EQ(healed, 4);  // each plan that ends heals what lasts
  const auto found = all_struck();
  CHECK_EQ(found.size(), before + 4);
  CHECK(found.back().kind == "loss-link" && found.back().moment == "during" && found.back().why_not.empty());
}

TEST(the_draws_of_a_fault_follow_from_the_seed) {
  prepare();
  for (int run = 0; run < 2; ++run) {
    const Switched on({.every = 1, .kind = Kind::loss_link, .amount = 0.5});
    come_by(Moment::before);
    come_by(Moment::before);
  }
  CHECK_EQ(handed_on[0].draw, handed_on[2].draw);
  CHECK_EQ(handed_on[1].draw, handed_on[3].draw);
  CHECK(handed_on[0].draw != handed_on[1].draw);
}

TEST(a_fault_that_can_do_nothing_says_why) {
  prepare();
  const Switched on({.kind = Kind::drop_link});
  come_by(Moment::before);
  CHECK_EQ(all_struck().back().why_not, std::string("there is no link"));
}

TEST(a_lack_of_room_fails_one_call) {
  prepare();
  const Switched on({.n = 1, .kind = Kind::full_disk});
  come_by(Moment::before);
  const int file = base::open_file("/proc/self/stat", O_RDONLY);  // needs no room
  CHECK(file >= 0);
  close(file);
  CHECK_EQ(error_of(make_memory), ENOSPC);
  CHECK_EQ(error_of(make_memory), 0);
}

TEST(a_lack_of_descriptors_fails_one_call) {
  prepare();
  const Switched on({.kind = Kind::no_descriptors});
  const auto opens = [] {
    const std::vector<int> results{base::open_file("/proc/self/stat", O_RDONLY),
                                   base::make_memory("test", 0),
                                   base::make_socket(1, 1),
                                   base::make_event_counter(),
                                   base::make_epoll(),
                                   base::open_pidfd(getpid())};
    int failed = 0;
    for (const int result : results) {
      if (result < 0)
        ++failed;
      else
        close(result);
    }
    return failed;
  };
  CHECK_EQ(opens(), 0);
  come_by(Moment::before);
  CHECK_EQ(opens(), 1);
  come_by(Moment::before);
  CHECK_EQ(error_of(make_memory), EMFILE);
  CHECK_EQ(error_of(make_memory), 0);
}

TEST(a_lack_of_room_for_bytes) {
  prepare();
  const Switched on({.kind = Kind::full_disk});
  const base::FileDescriptor file(base::make_memory("test", 0));
  for (const auto& call : std::vector<std::function<int()>>{
           [&] { return static_cast<int>(base::write_file(file.get(), "text", 4)); },
           [&] { return base::set_length(file.get(), 8192); }}) {
    come_by(Moment::before);
    CHECK_EQ(call(), -1);
    CHECK_EQ(errno, ENOSPC);
    CHECK(call() >= 0);
  }
  come_by(Moment::before);
  CHECK_EQ(base::allocate(file.get(), 0, 4096), ENOSPC);
  CHECK_EQ(base::allocate(file.get(), 0, 4096), 0);
}

TEST(what_no_call_has_met_ends_with_the_plan) {
  prepare();
  {
    const Switched on({.kind = Kind::no_descriptors});
    come_by(Moment::before);
  }
  CHECK_EQ(error_of(make_memory), 0);
}

TEST_MAIN
