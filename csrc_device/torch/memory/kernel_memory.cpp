#include "csrc_device/torch/memory/kernel_memory.hpp"

#include <cstring>

#include "csrc_device/torch/allocator.hpp"

namespace vdev {
namespace {

void take_back(void* loan) {
  static_cast<Loan*>(loan)->lent = false;
}

}  // namespace

int KernelMemory::ordinal_of(const void* data, std::size_t bytes) const {
  int found = -1;
  int requests = 0;
  for (const Entry& entry : log_) {
    if (entry.bytes != bytes) continue;
    if (entry.data == data) found = requests;
    ++requests;
  }
  return found;
}

c10::DataPtr KernelMemory::allocate(std::size_t bytes, c10::Allocator& plain) {
  Loan* wanted = nullptr;
  for (Loan* loan : loans_) {
    if (loan->bytes == bytes && loan->requests++ == loan->ordinal) wanted = loan;
  }
  if (wanted != nullptr) {
    wanted->lent = true;
    return {wanted->data, wanted, &take_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DataPtr data = card_ < 0 ? plain.allocate(bytes)
                      : queue_  ? allocate_for(card_, bytes, queue_, kScratchPool)
                                : allocate_on(card_, bytes, Asker::kernel);
  data.unsafe_set_device(c10::Device(c10::DeviceType::CPU));
  if (logs_) log_.push_back({bytes, data.get()});
  return data;
}

bool is_refused_loan(const char* text) {
  return std::strstr(text, "dptr.get() == dptr.get_context()") != nullptr;
}

}  // namespace vdev
