// What c10d has and this backend has not: one line each, so that the error names the operation.
#include "csrc_pg/process_group.hpp"

namespace vccl {
namespace {

[[noreturn]] void unsupported(const char* operation) {
  C10_THROW_ERROR(NotImplementedError, std::string("Backend vccl does not support ") + operation);
}

}  // namespace

using PG = ProcessGroupVccl;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using OptionsPtr = c10::intrusive_ptr<c10d::Backend::Options>;

PG::WorkPtr PG::allreduce_sparse(Tensors&, const c10d::AllreduceOptions&) {
  unsupported("all_reduce of sparse tensors");
}
PG::WorkPtr PG::reduce(Tensors&, const c10d::ReduceOptions&) {
  unsupported("reduce");
}
PG::WorkPtr PG::allgather_coalesced(TensorLists&, Tensors&, const c10d::AllgatherOptions&) {
  unsupported("all_gather_coalesced");
}
PG::WorkPtr PG::gather(TensorLists&, Tensors&, const c10d::GatherOptions&) {
  unsupported("gather");
}
PG::WorkPtr PG::scatter(Tensors&, TensorLists&, const c10d::ScatterOptions&) {
  unsupported("scatter");
}
PG::WorkPtr PG::reduce_scatter(Tensors&, TensorLists&, const c10d::ReduceScatterOptions&) {
  unsupported("reduce_scatter");
}
PG::WorkPtr PG::_reduce_scatter_base(at::Tensor&, at::Tensor&, const c10d::ReduceScatterOptions&) {
  unsupported("reduce_scatter_tensor");
}
PG::WorkPtr PG::reduce_scatter_tensor_coalesced(Tensors&, Tensors&, const c10d::ReduceScatterOptions&) {
  unsupported("reduce_scatter_tensor_coalesced");
}
PG::WorkPtr PG::alltoall_base(at::Tensor&, at::Tensor&, std::vector<std::int64_t>&,
                              std::vector<std::int64_t>&, const c10d::AllToAllOptions&) {
  unsupported("all_to_all_single");
}
PG::WorkPtr PG::alltoall(Tensors&, Tensors&, const c10d::AllToAllOptions&) {
  unsupported("all_to_all");
}
PG::WorkPtr PG::send(Tensors&, int, int) {
  unsupported("send");
}
PG::WorkPtr PG::recv(Tensors&, int, int) {
  unsupported("recv");
}
PG::WorkPtr PG::recvAnysource(Tensors&, int) {
  unsupported("recv from any source");
}
void PG::monitoredBarrier(const c10d::BarrierOptions&, bool) {
  unsupported("monitored_barrier");
}
void PG::startCoalescing() {
  unsupported("coalescing");
}
PG::WorkPtr PG::endCoalescing() {
  unsupported("coalescing");
}
BackendPtr PG::split(const StorePtr&, const std::vector<int>&, const OptionsPtr&) {
  unsupported("split_group");
}
BackendPtr PG::merge(const StorePtr&, const OptionsPtr&, const int&, const int&) {
  unsupported("merging groups");
}
BackendPtr PG::shrink(const std::vector<std::int64_t>&, int, const OptionsPtr&) {
  unsupported("shrink_group");
}
void PG::registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&&) {
  unsupported("on-completion hooks");
}
void PG::waitForPendingWorks() {
  unsupported("waiting for pending works");
}
at::Tensor PG::allocateTensor(long, at::TensorOptions) {
  unsupported("allocating tensors from the group");
}
std::shared_ptr<c10::Allocator> PG::getMemAllocator() {
  unsupported("a memory allocator of the group");
}
void PG::suspend() {
  unsupported("suspend");
}
void PG::resume() {
  unsupported("resume");
}
std::unordered_map<std::string, std::uint64_t> PG::getMemoryStats() {
  unsupported("memory statistics of the group");
}

}  // namespace vccl
