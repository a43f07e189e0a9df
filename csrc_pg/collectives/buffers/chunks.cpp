#include "csrc_pg/collectives/buffers/chunks.hpp"

#include "base/past_caches.hpp"

namespace vccl {

Chunk even_chunk(std::size_t count, std::size_t element, int index, int size) {
  const std::size_t line = std::max<std::size_t>(base::kLineBytes / element, 1);
  const std::size_t lines = (count + line - 1) / line;
  const std::size_t each = lines / std::size_t(size), more = lines % std::size_t(size);
  const auto before = [&](std::size_t i) { return std::min((i * each + std::min(i, more)) * line, count); };
  const std::size_t begin = before(std::size_t(index));
  return {begin, before(std::size_t(index) + 1) - begin};
}

}  // namespace vccl
