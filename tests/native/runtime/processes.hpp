// Processes that play a scene together: each is forked from one that uses no card, and has an inbox.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "csrc_device/runtime/process_sharing.hpp"
#include "tests/native/check.hpp"

namespace scene {

constexpr int kTimeout = 300'000;  // ms

/// What the processes say to each other, as texts.
class Stage {
 public:
  explicit Stage(std::size_t actors) : inboxes_(actors) {
    for (auto& inbox : inboxes_) CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, inbox.ends), 0);
  }
  ~Stage() {
    for (auto& inbox : inboxes_) {
      close(inbox.ends[0]);
      close(inbox.ends[1]);
    }
  }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  void tell(std::size_t actor, const std::string& text) {
    CHECK(send(inboxes_[actor].ends[1], text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  }
  /// Waits for the next text that was told to the actor.
  std::string hear(std::size_t actor) {
    pollfd entry{inboxes_[actor].ends[0], POLLIN, 0};
    CHECK_EQ(poll(&entry, 1, kTimeout), 1);
    char text[4096];
    const auto size = recv(inboxes_[actor].ends[0], text, sizeof text, 0);
    CHECK(size > 0);
    return {text, static_cast<std::size_t>(size)};
  }

  /// Returns whether a text waits for the actor.
  bool has_news(std::size_t actor) const {
    pollfd entry{inboxes_[actor].ends[0], POLLIN, 0};
    return poll(&entry, 1, 0) == 1;
  }

  void tell(std::size_t actor, const vdev::SharedRange& range) {
    const std::uint64_t numbers[] = {range.offset, range.bytes, range.slot, range.generation};
    tell(actor, std::string(reinterpret_cast<const char*>(numbers), sizeof numbers) + range.memory);
  }
  vdev::SharedRange hear_range(std::size_t actor) {
    const std::string text = hear(actor);
    std::uint64_t numbers[4];
    CHECK(text.size() > sizeof numbers);
    std::memcpy(numbers, text.data(), sizeof numbers);
    return {text.substr(sizeof numbers), numbers[0], numbers[1], static_cast<std::uint32_t>(numbers[2]),
            static_cast<std::uint32_t>(numbers[3])};
  }

 private:
  struct Inbox {
    int ends[2];
  };
  std::vector<Inbox> inboxes_;
};

using Role = std::function<void(Stage&)>;

/// A role in which the process is to be killed by SIGKILL.
struct Actor {
  Role role;
  bool dies = false;
  Actor(Role r) : role(std::move(r)) {}
  Actor(Role r, bool d) : role(std::move(r)), dies(d) {}
};

/// Runs every role in a process of its own, and fails if one of them does, or does not end in time.
inline void play(const std::vector<Actor>& actors) {
  Stage stage(actors.size());
  std::vector<pid_t> pids;
  std::fflush(nullptr);
  for (const auto& actor : actors) {
    const pid_t pid = fork();
    if (pid == 0) {
      int status = 1;
      try {
        actor.role(stage);
        status = 0;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "actor %zu: %s\n", pids.size(), error.what());
      }
      std::fflush(nullptr);
      _exit(status);
    }
    pids.push_back(pid);
  }
  std::string wrong;
  for (std::size_t i = 0; i < pids.size(); ++i) {
    int status = 0;
    int waited = 0;
    for (; waited < kTimeout && waitpid(pids[i], &status, WNOHANG) == 0; ++waited)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (waited == kTimeout) {
      kill(pids[i], SIGKILL);
      waitpid(pids[i], &status, 0);
      wrong += " hung " + std::to_string(i);
    } else if (actors[i].dies ? !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
                              : !(WIFEXITED(status) && WEXITSTATUS(status) == 0)) {
      wrong += " failed " + std::to_string(i);
    }
  }
  if (!wrong.empty()) throw check::Failure("actors:" + wrong);
}

[[noreturn]] inline void die() {
  kill(getpid(), SIGKILL);
  throw std::logic_error("alive after SIGKILL");
}

}  // namespace scene
