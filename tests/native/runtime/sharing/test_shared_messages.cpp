// Messages about shared card memory that no process of this version, machine or user would send.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "base/sealed_memory.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/process_sharing.hpp"
#include "csrc_device/runtime/sharing/ledger.hpp"
#include "csrc_device/runtime/sharing/memory_name.hpp"
#include "tests/native/check.hpp"
#include "tests/native/runtime/processes.hpp"
#include "tests/native/runtime/suppressions.hpp"

using namespace vdev;
using scene::Actor;
using scene::play;
using scene::Stage;

namespace {

constexpr std::size_t kSize = 4096;

std::string error_of(const SharedRange& range) {
  try {
    receive_range(range);
  } catch (const CardError& error) {
    return error.what();
  }
  return "no error";
}

void check_error(const SharedRange& range, const std::string& part) {
  const std::string text = error_of(range);
  if (text.find(part) == std::string::npos) throw check::Failure("\"" + text + "\" lacks \"" + part + "\"");
  decline_range(range);  // never fails for what could be a message
}

SharedRange with_name(const SharedRange& range, const std::function<void(MemoryName&)>& change) {
  auto name = MemoryName::of_bytes(range.memory);
  change(name);
  SharedRange changed = range;
  changed.memory = name.bytes();
  return changed;
}

/// Lets `receiver` try messages that it makes from a good one, and afterwards receives the good one.
void receive_others_than(const std::function<void(const SharedRange&)>& receiver) {
  play({Actor([](Stage& stage) {
          auto* p = card(0).allocator().allocate(kSize, card(0).default_stream());
          stage.tell(1, share_range(0, p, kSize));
          CHECK_EQ(stage.hear(0), "done");
          card(0).allocator().free(p);
          CHECK_EQ(card(0).allocator().stats().allocated_bytes.current, 0);
        }),
        Actor([&](Stage& stage) {
          const auto good = stage.hear_range(1);
          receiver(good);
          CHECK(receive_range(good)->data() != nullptr);
          stage.tell(0, "done");
        })});
}

}  // namespace

TEST(other_bytes_are_no_message) {
  receive_others_than([](const SharedRange& good) {
    for (const std::string& bytes : {std::string(), std::string("vdevmem"), std::string(152, 'x')}) {
      SharedRange range = good;
      range.memory = bytes;
      CHECK_EQ(error_of(range),
               "A card's tensor of another process cannot be received: its bytes name nothing of a card.");
    }
    SharedRange longer = good;
    longer.memory += 'x';
    CHECK(error_of(longer).find("has version 1 and 153 bytes") != std::string::npos);
    const auto other = with_name(good, [](MemoryName& name) { name.version = 2; });
    CHECK(error_of(other).find("has version 2 and 152 bytes, and this version of vccl reads version 1") !=
          std::string::npos);
  });
}

TEST(other_machines_users_and_namespaces) {
  receive_others_than([](const SharedRange& good) {
    check_error(with_name(good, [](MemoryName& name) { name.boot[0] ^= 1; }), "of another machine");
    check_error(with_name(good, [](MemoryName& name) { ++name.user; }),
                "Processes of different users share no");
    check_error(with_name(good, [](MemoryName& name) { ++name.pid_namespace.inode; }),
                "is in another pid namespace");
  });
}

TEST(the_kernel_keeps_other_users_out) {
  if (geteuid() != 0) return;  // only root can become another user
  play({Actor([](Stage& stage) {
          auto* p = card(0).allocator().allocate(kSize, card(0).default_stream());
          stage.tell(1, share_range(0, p, kSize));
          CHECK_EQ(stage.hear(0), "done");
        }),
        Actor([](Stage& stage) {
          const auto good = stage.hear_range(1);
          CHECK_EQ(setresuid(65534, 65534, 65534), 0);
          check_error(good, "belongs to user 0, and the receiver to user 65534");
          check_error(with_name(good, [](MemoryName& name) { name.user = 65534; }), "Permission denied");
          stage.tell(0, "done");
        })});
}

TEST(other_processes_and_files) {
  receive_others_than([](const SharedRange& good) {
    const char* ended = "that owns it has ended";
    check_error(with_name(good, [](MemoryName& name) { name.pid = getpid(); }), ended);
    check_error(with_name(good, [](MemoryName& name) { name.pid = 1 << 30; }), ended);
    check_error(with_name(good, [](MemoryName& name) { name.pid = -1; }), ended);
    check_error(with_name(good, [](MemoryName& name) { name.ledger_fd = -1; }), ended);
    check_error(with_name(good, [](MemoryName& name) { name.ledger_fd = 0; }), ended);
    check_error(with_name(good, [](MemoryName& name) { name.memory_fd = name.ledger_fd; }), ended);
    check_error(with_name(good, [](MemoryName& name) { ++name.memory.bytes; }), ended);
    check_error(with_name(good, [](MemoryName& name) { ++name.memory.inode; }), ended);
    // The card's memory in the place of the ledger: a file of the right kind and of another size.
    check_error(with_name(good,
                          [](MemoryName& name) {
                            name.ledger_fd = name.memory_fd;
                            name.ledger = name.memory;
                          }),
                "its ledger has another size");
    check_error(with_name(good, [](MemoryName& name) { name.nonce[3] ^= std::byte{1}; }),
                "its file is not the ledger that was announced");
    // The ledger is looked at again when it is open already.
    const auto held = receive_range(good);
    check_error(with_name(good, [](MemoryName& name) { name.nonce[3] ^= std::byte{1}; }),
                "its file is not the ledger that was announced");
  });
}

TEST(files_that_no_card_has) {
  play({Actor([](Stage& stage) {
          auto* p = card(0).allocator().allocate(kSize, card(0).default_stream());
          const auto good = share_range(0, p, kSize);
          base::FileDescriptor unsealed(memfd_create("odd", MFD_CLOEXEC));
          CHECK_EQ(ftruncate(unsealed.get(), 1 << 20), 0);
          stage.tell(1, with_name(good, [&](MemoryName& name) {
                       name.memory_fd = unsealed.get();
                       name.memory = base::identify_file(unsealed.get());
                     }));
          auto ledger = base::make_sealed_memory("odd", LedgerFile::kBytes);
          stage.tell(1, with_name(good, [&](MemoryName& name) {
                       name.ledger_fd = ledger.get();
                       name.ledger = base::identify_file(ledger.get());
                     }));
          CHECK_EQ(stage.hear(0), "done");
        }),
        Actor([](Stage& stage) {
          check_error(stage.hear_range(1), "its file is not sealed against shrinking");
          check_error(stage.hear_range(1),
                      "its ledger has version 0, and this version of vccl reads version 1");
          stage.tell(0, "done");
        })});
}

TEST(ranges_and_leases_that_the_owner_did_not_name) {
  receive_others_than([](const SharedRange& good) {
    const auto changed = [&](auto change) {
      SharedRange range = good;
      change(range);
      return range;
    };
    const std::uint64_t none = ~std::uint64_t{0};
    const char* beyond = ", and the memory has 67108864";
    CHECK(error_of(changed([&](SharedRange& r) { r.offset = none; })).find(beyond) != std::string::npos);
    CHECK(error_of(changed([&](SharedRange& r) { r.bytes = none; })).find(beyond) != std::string::npos);
    CHECK(error_of(changed([&](SharedRange& r) { r.offset = 64 << 20; })).find(beyond) != std::string::npos);
    check_error(changed([](SharedRange& r) { r.slot = LedgerFile::kSlots; }), "names no block");
    check_error(changed([](SharedRange& r) { r.generation = 0; }), "names no block");
    check_error(changed([](SharedRange& r) { ++r.generation; }), "its sender has freed the memory already");
    check_error(changed([](SharedRange& r) { ++r.slot; }), "its sender has freed the memory already");
    const auto held = receive_range(good);  // now the entry is held already
    check_error(changed([](SharedRange& r) { ++r.generation; }), "its sender has freed the memory already");
  });
}

TEST(a_message_that_is_received_twice) {
  play({Actor([](Stage& stage) {
          auto* p = card(0).allocator().allocate(kSize, card(0).default_stream());
          stage.tell(1, share_range(0, p, kSize));
          CHECK_EQ(stage.hear(0), "held twice");
          card(0).allocator().free(p);
          CHECK(card(0).allocator().stats().allocated_bytes.current != 0);
          stage.tell(1, "let go");
          CHECK_EQ(stage.hear(0), "let go");
          collect_shared_blocks();
          CHECK_EQ(card(0).allocator().stats().allocated_bytes.current, 0);
          stage.tell(1, "freed");
          CHECK_EQ(stage.hear(0), "done");
        }),
        Actor([](Stage& stage) {
          const auto message = stage.hear_range(1);
          auto first = receive_range(message), second = receive_range(message);
          first.reset();
          stage.tell(0, "held twice");
          stage.hear(1);
          second.reset();
          stage.tell(0, "let go");
          stage.hear(1);
          check_error(message, "its sender has freed the memory already");
          stage.tell(0, "done");
        })});
}

TEST(an_entry_is_used_again_for_another_block) {
  play({Actor([](Stage& stage) {
          auto& allocator = card(0).allocator();
          auto* p = allocator.allocate(kSize, card(0).default_stream());
          const auto old = share_range(0, p, kSize);
          decline_range(old);
          allocator.free(p);
          auto* other = allocator.allocate(kSize, card(0).default_stream());
          const auto message = share_range(0, other, kSize);
          CHECK_EQ(message.slot, old.slot);
          CHECK(message.generation != old.generation);
          stage.tell(1, old);
          stage.tell(1, message);
          CHECK_EQ(stage.hear(0), "done");
        }),
        Actor([](Stage& stage) {
          check_error(stage.hear_range(1), "its sender has freed the memory already");
          receive_range(stage.hear_range(1));
          stage.tell(0, "done");
        })});
}

int main(int argc, char** argv) {
  setenv("VDEV_DEVICE_COUNT", "2", 1);
  setenv("VDEV_MEMORY", "64M", 1);
  unsetenv("VDEV_VISIBLE_DEVICES");
  return check::run(argc, argv);
}
