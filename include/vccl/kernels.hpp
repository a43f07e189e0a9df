// What programs compiled from CUDA C++ call on cards that pose as CUDA (docs/inside/cuda_extensions.md).
//
// The CUDA headers of vccl (vccl/cuda/cpp/toolkit/include) are written in terms of these functions. A program
// uses those headers, and not this one. It includes nothing of torch, because many .cu files do not.
//
// A stream is named by the pointer that torch.cuda.Stream.cuda_stream shows: null is the default stream of
// the calling thread's current card. Functions throw std::exception where they fail, and c10::Error where
// torch fails.
#pragma once

#include <cstddef>

namespace vdev::cuda {

/// A kernel with its arguments. vccl calls `run(data)` each time the kernel runs, which is several times in a
/// graph, and `drop(data)` when nobody needs the kernel any more.
struct Kernel {
  void (*run)(void* data);
  void (*drop)(void* data);
  void* data;
};

/// Makes the kernel a task of the stream. Nobody knows what memory it uses. So it does not run behind a
/// failure of its stream, and tasks behind a kernel that has failed do not run either. vccl takes over
/// `kernel.data` also when the function throws.
void launch(const char* name, void* stream, const Kernel& kernel);

/// Calls `part(data)` on at most `most` threads at once, among them the calling thread, and returns when all
/// of them have returned. Meant for kernels, which may use as many threads as torch's own. `part` must not
/// throw.
void run_on_cores(int most, void (*part)(void*), void* data);

int card_count();
int current_card();
void set_current_card(int card);

/// The figures of a card, as torch.cuda.get_device_properties() shows them.
struct Figures {
  char name[256];
  std::size_t memory, free_memory;  // bytes
  int multiprocessors;
  int major, minor;  // compute capability
};
Figures figures(int card);

/// Returns bytes of the current card, in the order of its current stream, and null for 0 bytes.
void* allocate(std::size_t bytes);
/// Frees what allocate() has returned, when the streams of the cards have run everything. Returns false if
/// there is no such memory. Does nothing for null.
bool release(void* memory);

/// Copies between cards and the host in the order of the stream, as torch's copies do: from and to pinned
/// memory and within cards without blocking, unless `waits` is true.
void copy(void* to, const void* from, std::size_t bytes, void* stream, bool waits);
/// Sets bytes of a card in the order of the stream.
void fill(void* to, int byte, std::size_t bytes, void* stream);

/// Returns the calling thread's current stream on its current card.
void* current_stream();
/// Returns the pointer of the stream of a card that torch knows by `id`.
void* stream_pointer(int card, long id);
/// Returns one of the streams that torch hands out. It stays valid. `priority` is 0 or -1 (high).
void* pool_stream(int priority);
void synchronize(void* stream);
void synchronize_card();
/// Returns whether the stream has run everything.
bool is_idle(void* stream);

class Event;
Event* make_event(bool has_time);
void forget(Event* event);
void record(Event& event, void* stream);
void wait(void* stream, const Event& event);
void synchronize(const Event& event);
bool is_reached(const Event& event);
/// Returns the milliseconds between two events that were recorded.
double milliseconds(const Event& begin, const Event& end);

}  // namespace vdev::cuda
