// Trains a small network on virtual cards, in processes that share their gradients. There is no Python in it.
//
//     cmake -S . -B build -DCMAKE_PREFIX_PATH=$(python -c "import vccl; print(vccl.cmake_prefix_path)")
//     cmake --build build
//     build/train 0 2 /tmp/meeting & build/train 1 2 /tmp/meeting
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <torch/nn.h>
#include <torch/optim/sgd.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <vccl/device.hpp>
#include <vccl/group.hpp>
#include <vccl/version.hpp>

namespace {

// Replaces a tensor by its mean over all ranks. The host does not wait: the card's stream does.
void average(c10d::Backend& group, const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::AVG;
  group.allreduce(tensors, options)->wait();
}

void train(c10d::Backend& group, const at::Device& card) {
  torch::manual_seed(0);  // the same weights on every rank
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::GELU(), torch::nn::Linear(32, 1));
  model->to(card);
  torch::optim::SGD optimizer(model->parameters(), 0.05);

  torch::manual_seed(1 + group.getRank());  // other data on every rank
  const at::Tensor inputs = torch::randn({64, 8}).to(card);
  const at::Tensor targets = inputs.sum(1, /*keepdim=*/true).sin();

  for (int step = 0; step <= 60; ++step) {
    optimizer.zero_grad();
    at::Tensor loss = (model->forward(inputs) - targets).square().mean();
    loss.backward();
    for (const at::Tensor& parameter : model->parameters()) average(group, parameter.grad());
    optimizer.step();
    at::Tensor mean = loss.detach();
    average(group, mean);
    if (step % 20 == 0 && group.getRank() == 0)
      std::printf("step %2d  loss %.4f\n", step, mean.item<double>());
  }

  // Every rank has taken the same steps, so the mean of a weight over all ranks is the weight itself.
  for (const at::Tensor& parameter : model->parameters()) {
    at::Tensor mean = parameter.detach().clone();
    average(group, mean);
    TORCH_CHECK(at::allclose(mean, parameter), "the ranks have different weights");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s RANK RANKS FILE\n", argv[0]);
    return 2;
  }
  if (vccl::version() < VCCL_VERSION_CODE) {
    std::fprintf(stderr, "compiled for vccl %d.%d.%d or later\n", VCCL_VERSION_MAJOR, VCCL_VERSION_MINOR,
                 VCCL_VERSION_PATCH);
    return 2;
  }
  const int rank = std::atoi(argv[1]), ranks = std::atoi(argv[2]);
  vdev::initialize();
  const at::Device card(at::kPrivateUse1, static_cast<at::DeviceIndex>(rank));
  const auto store = c10::make_intrusive<c10d::FileStore>(argv[3], ranks);
  const auto group = vccl::make_group(store, rank, ranks);
  train(*group, card);
  vdev::synchronize(rank);
  std::printf("rank %d of %d is done on %s\n", rank, ranks, card.str().c_str());
  return 0;
}
