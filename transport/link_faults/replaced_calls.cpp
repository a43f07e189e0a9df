#include "transport/link_faults/replaced_calls.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "transport/connections/zmq_api.hpp"

namespace vccl::link_faults {
namespace {

/// What a library's dynamic section says.
struct Tables {
  const char* names = nullptr;
  const ElfW(Sym) * symbols = nullptr;
  struct Relocations {
    const ElfW(Rela) * first = nullptr;
    std::size_t bytes = 0;
  };
  Relocations calls, others;  // of functions and of everything, if the linker bound all of them at once
};

Tables tables_of(const link_map& library) {
  const auto at = [&](ElfW(Addr) address) {
    // glibc has made these absolute, but on RISC-V.
    return reinterpret_cast<const void*>(address < library.l_addr ? library.l_addr + address : address);
  };
  Tables tables;
  for (const ElfW(Dyn)* entry = library.l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_STRTAB) tables.names = static_cast<const char*>(at(entry->d_un.d_ptr));
    if (entry->d_tag == DT_SYMTAB) tables.symbols = static_cast<const ElfW(Sym)*>(at(entry->d_un.d_ptr));
    if (entry->d_tag == DT_JMPREL) tables.calls.first = static_cast<const ElfW(Rela)*>(at(entry->d_un.d_ptr));
    if (entry->d_tag == DT_PLTRELSZ) tables.calls.bytes = entry->d_un.d_val;
    if (entry->d_tag == DT_RELA) tables.others.first = static_cast<const ElfW(Rela)*>(at(entry->d_un.d_ptr));
    if (entry->d_tag == DT_RELASZ) tables.others.bytes = entry->d_un.d_val;
  }
  return tables;
}

/// Returns whether the dynamic linker has made the place read-only when it had loaded the library.
bool is_read_only(const link_map& library, std::uintptr_t place) {
  struct Search {
    const link_map& library;
    std::uintptr_t place;
  } search{library, place};
  const auto look = [](dl_phdr_info* info, std::size_t, void* data) {
    const auto& [wanted, at] = *static_cast<Search*>(data);
    if (info->dlpi_addr != wanted.l_addr) return 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const ElfW(Phdr) & part = info->dlpi_phdr[i];
      const std::uintptr_t first = info->dlpi_addr + part.p_vaddr;
      if (part.p_type == PT_GNU_RELRO && first <= at && at < first + part.p_memsz) return 1;
    }
    return 0;
  };
  return dl_iterate_phdr(look, &search) != 0;
}

bool write_entry(const link_map& library, std::uintptr_t place, void* replacement) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* const start = reinterpret_cast<void*>(place / page * page);
  const bool protect = is_read_only(library, place);
  if (protect && mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return false;
  // libzmq's threads may be calling through this entry.
  std::atomic_ref(*reinterpret_cast<void**>(place)).store(replacement, std::memory_order_release);
  if (protect) mprotect(start, page, PROT_READ);
  return true;
}

}  // namespace

bool replace_call(const char* name, void* replacement) {
  Dl_info info{};
  link_map* library = nullptr;
  void* const in_libzmq = reinterpret_cast<void*>(zmq_api().version);
  if (dladdr1(in_libzmq, &info, reinterpret_cast<void**>(&library), RTLD_DL_LINKMAP) == 0 || !library)
    return false;
  const Tables tables = tables_of(*library);
  if (!tables.names || !tables.symbols) return false;
  bool any = false;
  for (const auto& [first, bytes] : {tables.calls, tables.others}) {
    for (std::size_t i = 0; first && i < bytes / sizeof *first; ++i) {
      const std::size_t symbol = ELF64_R_SYM(first[i].r_info);
      if (symbol == 0 || first[i].r_addend != 0) continue;
      if (std::strcmp(tables.names + tables.symbols[symbol].st_name, name) != 0) continue;
      if (!write_entry(*library, library->l_addr + first[i].r_offset, replacement)) return false;
      any = true;
    }
  }
  return any;
}

}  // namespace vccl::link_faults
