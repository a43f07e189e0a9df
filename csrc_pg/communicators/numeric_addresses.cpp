#include "csrc_pg/communicators/numeric_addresses.hpp"

#include <elf.h>
#include <link.h>
#include <netdb.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace vccl {
namespace {

using Function = int (*)(const sockaddr*, socklen_t, char*, socklen_t, char*, socklen_t, int);

constexpr std::string_view kLibrary = "/libtorch_cpu.so";
#if defined(__aarch64__)
constexpr auto kJumpSlot = R_AARCH64_JUMP_SLOT;
#else
constexpr auto kJumpSlot = R_X86_64_JUMP_SLOT;
#endif

int with_number(const sockaddr* address, socklen_t length, char* host, socklen_t host_size, char* service,
                socklen_t service_size, int flags) {
  return getnameinfo(address, length, host, host_size, service, service_size, flags | NI_NUMERICHOST);
}

/// What the loader knows of a loaded library.
struct Library {
  ElfW(Addr) base = 0;
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  // The addresses of the functions of other libraries that it calls.
  const ElfW(Rela) * calls = nullptr;
  std::size_t call_count = 0;
  // The memory that the loader has made read-only after it has filled in the addresses.
  ElfW(Addr) sealed_begin = 0;
  ElfW(Addr) sealed_end = 0;
};

Library read_library(const dl_phdr_info& info) {
  Library found;
  found.base = info.dlpi_addr;
  const ElfW(Dyn)* entry = nullptr;
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const auto& header = info.dlpi_phdr[i];
    if (header.p_type == PT_DYNAMIC) entry = reinterpret_cast<const ElfW(Dyn)*>(found.base + header.p_vaddr);
    if (header.p_type == PT_GNU_RELRO) {
      found.sealed_begin = found.base + header.p_vaddr;
      found.sealed_end = found.sealed_begin + header.p_memsz;
    }
  }
  // The loader of glibc has added the base to these pointers.
  for (; entry != nullptr && entry->d_tag != DT_NULL; ++entry) switch (entry->d_tag) {
      case DT_SYMTAB:
        found.symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr);
        break;
      case DT_STRTAB:
        found.names = reinterpret_cast<const char*>(entry->d_un.d_ptr);
        break;
      case DT_JMPREL:
        found.calls = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr);
        break;
      case DT_PLTRELSZ:
        found.call_count = entry->d_un.d_val / sizeof(ElfW(Rela));
        break;
      default:
        break;
    }
  return found;
}

/// Replaces the address of getnameinfo() that the library calls. Returns whether it was found.
bool replace_in(const Library& library) {
  for (std::size_t i = 0; library.calls != nullptr && i < library.call_count; ++i) {
    const auto& relocation = library.calls[i];
    if (ELF64_R_TYPE(relocation.r_info) != kJumpSlot) continue;
    const auto& symbol = library.symbols[ELF64_R_SYM(relocation.r_info)];
    if (std::strcmp(library.names + symbol.st_name, "getnameinfo") != 0) continue;
    const ElfW(Addr) place = library.base + relocation.r_offset;
    if (place >= library.sealed_begin && place < library.sealed_end) return false;
    // Relaxed: a thread that calls meanwhile may find either function.
    std::atomic_ref(*reinterpret_cast<Function*>(place)).store(&with_number, std::memory_order_relaxed);
    return true;
  }
  return false;
}

int visit(dl_phdr_info* info, std::size_t /*size*/, void* result) {
  const std::string_view name = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  if (!name.ends_with(kLibrary)) return 0;
  const Library library = read_library(*info);
  *static_cast<bool*>(result) = library.symbols != nullptr && library.names != nullptr && replace_in(library);
  return 1;
}

}  // namespace

bool write_addresses_as_numbers() noexcept {
  bool replaced = false;
  dl_iterate_phdr(&visit, &replaced);
  return replaced;
}

}  // namespace vccl
