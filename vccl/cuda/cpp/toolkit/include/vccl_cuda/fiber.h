// Stacks, and switching from one to another: what lets a thread of a block wait for the others.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include "vccl_cuda/qualifiers.h"

namespace vccl_cuda VCCL_CUDA_HIDDEN {

#if defined(__x86_64__)
using Context = void*;  // the stack pointer; what has to be kept lies on the stack

// Saves what a function must keep for its caller, and goes on where `to` was saved. All fibers of a block run
// on one thread of the host, so the modes of its floating-point unit need not be saved.
__attribute__((naked, noinline)) inline void switch_context(Context*, Context) {
  asm volatile(
      "pushq %rbp\n\tpushq %rbx\n\tpushq %r12\n\tpushq %r13\n\tpushq %r14\n\tpushq %r15\n\t"
      "movq %rsp, (%rdi)\n\tmovq %rsi, %rsp\n\t"
      "popq %r15\n\tpopq %r14\n\tpopq %r13\n\tpopq %r12\n\tpopq %rbx\n\tpopq %rbp\n\tret");
}

inline void switch_to(Context& from, Context& to) {
  switch_context(&from, to);
}

// Returns a context that begins `entry`, which never returns. The stack ends at `top`, a multiple of 16.
inline Context begin_at(void* top, std::size_t, void (*entry)()) {
  void** slots = static_cast<void**>(top) - 8;
  std::memset(slots, 0, 8 * sizeof(void*));            // six registers, entry, and a return address of null
  slots[6] = reinterpret_cast<void*>(entry);
  return slots;
}
#else
using Context = ucontext_t;

inline void switch_to(Context& from, Context& to) {
  ::swapcontext(&from, &to);
}

inline Context begin_at(void* top, std::size_t size, void (*entry)()) {
  Context context;
  ::getcontext(&context);
  context.uc_stack.ss_sp = static_cast<char*>(top) - size;
  context.uc_stack.ss_size = size;
  context.uc_link = nullptr;
  ::makecontext(&context, entry, 0);
  return context;
}
#endif

// The memory that a thread of a GPU may have for its own is 512 KiB at most. Only what is used gets pages,
// and what lies below a stack may not be touched: a kernel that needs more ends the process by SIGSEGV
// instead of writing into another thread's variables.
class Stack {
 public:
  static constexpr std::size_t kSize = std::size_t{576} << 10;
  static constexpr std::size_t kGuard = std::size_t{64} << 10;

  Stack() {
    memory_ = ::mmap(nullptr, kSize + kGuard, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    ::mprotect(memory_, kGuard, PROT_NONE);
  }
  ~Stack() {
    if (memory_ != nullptr) ::munmap(memory_, kSize + kGuard);
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  Context begin(void (*entry)()) const {
    return begin_at(static_cast<char*>(memory_) + kGuard + kSize, kSize, entry);
  }

 private:
  void* memory_ = nullptr;
};

}  // namespace vccl_cuda
