"""Trains a tiny GPT of Megatron-core on two ranks. Arguments: how the model is divided; cpu, for gloo."""

import functools
import json
import os
import sys

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import initialize_rng_tracker, model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.overrides import TorchFunctionMode

LAYOUT = sys.argv[1]
ON_CPU = "cpu" in sys.argv
RANK = int(os.environ["RANK"])
VOCABULARY, LENGTH, BATCH = 64, 16, 2
PARTS: dict[str, dict[str, int]] = {
    "data": {},
    "tensor": {"tensor_model_parallel_size": 2},
    "pipeline": {"pipeline_model_parallel_size": 2},
}


class CpuForCuda(TorchFunctionMode):
    """Megatron names the device "cuda" whatever the backend is. Makes its tensors on the CPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def make_model() -> DistributedDataParallel:
    torch.manual_seed(0)
    if ON_CPU:
        initialize_rng_tracker(inference_rng_tracker=True)  # has no generators of CUDA
    else:
        model_parallel_cuda_manual_seed(0)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        # Cards and the CPU begin with the same weights.
        use_cpu_initialization=True,
        pipeline_dtype=torch.float32,
        add_bias_linear=False,
        **PARTS[LAYOUT],
    )
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=VOCABULARY,
        max_sequence_length=LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    ).to(torch.cuda.current_device())
    return DistributedDataParallel(
        config, DistributedDataParallelConfig(use_distributed_optimizer=not ON_CPU), model
    )


def make_optimizer(model: DistributedDataParallel):
    if not ON_CPU:
        config = OptimizerConfig(
            optimizer="adam", lr=1e-2, weight_decay=0.0, clip_grad=0.0, use_distributed_optimizer=True
        )
        return get_megatron_optimizer(config, [model])
    # Megatron's optimizers take parameters on CUDA only.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)

    def take_gradients(*_: object) -> None:
        for parameter in model.parameters():
            parameter.grad = parameter.main_grad

    optimizer.register_step_pre_hook(take_gradients)
    return optimizer


def forward(batches, model):
    tokens = next(batches)
    positions = torch.arange(LENGTH, device=tokens.device).expand(BATCH, -1)
    mask = torch.ones(LENGTH, LENGTH, device=tokens.device).tril()[None, None] < 0.5
    losses = model(tokens[:, :-1], positions, mask, labels=tokens[:, 1:])
    return losses, lambda losses: (losses.mean(), {"loss": losses.mean().detach()})


def main() -> None:
    if ON_CPU:
        torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
        torch.cuda.synchronize = lambda *_: None
        CpuForCuda().__enter__()
    else:
        torch.cuda.set_device(RANK)
    dist.init_process_group("gloo" if ON_CPU else "nccl")
    parallel_state.initialize_model_parallel(**PARTS[LAYOUT])
    model = make_model()
    model.module.config.finalize_model_grads_func = functools.partial(finalize_model_grads)
    optimizer = make_optimizer(model)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(5):
        batches = [torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator) for _ in range(2)]
        model.zero_grad_buffer()
        optimizer.zero_grad()
        found = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter([tokens.to(torch.cuda.current_device()) for tokens in batches]),
            model=model,
            num_microbatches=len(batches),
            seq_length=LENGTH,
            micro_batch_size=BATCH,
        )
        optimizer.step()
        losses.append(sum(one["loss"].item() for one in found) / len(batches) if found else 0.0)
    # The last stage of a pipeline has the losses.
    if RANK == 1:
        print("RESULT", json.dumps({"device": next(model.parameters()).device.type, "losses": losses}))
    dist.destroy_process_group()


main()
