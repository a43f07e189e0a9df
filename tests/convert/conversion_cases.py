"""Pieces of scripts before and after the conversion. A piece without `import torch` gets it in front."""

ACC = "torch.accelerator.current_accelerator()"
BACKEND = f'torch.distributed.get_default_backend_for_device({ACC} or "cpu")'

CASES: dict[str, tuple[str, str]] = {
    # ---- functions of torch.cuda
    "is_available": ("torch.cuda.is_available()", "torch.accelerator.is_available()"),
    "device_count": ("n = torch.cuda.device_count()", "n = torch.accelerator.device_count()"),
    "set_device": ("torch.cuda.set_device(rank)", "torch.accelerator.set_device_index(rank)"),
    "set_device keyword": (
        "torch.cuda.set_device(device = rank)",
        "torch.accelerator.set_device_index(rank)",
    ),
    "current_device": ("torch.cuda.current_device()", "torch.accelerator.current_device_index()"),
    "synchronize": ("torch.cuda.synchronize()", "torch.accelerator.synchronize()"),
    "synchronize device": (
        'torch.cuda.synchronize(device="cuda:1")',
        f'torch.accelerator.synchronize(f"{{{ACC}}}:1")',
    ),
    "current_stream": (
        "torch.cuda.current_stream().wait_stream(s)",
        "torch.accelerator.current_stream().wait_stream(s)",
    ),
    "set_stream": ("torch.cuda.set_stream(s)", "torch.accelerator.set_stream(s)"),
    "default_stream": ("torch.cuda.default_stream()", "torch.get_device_module().default_stream()"),
    "stream": ("with torch.cuda.stream(s): pass", "with torch.get_device_module().stream(s): pass"),
    "Stream": ("s = torch.cuda.Stream()", "s = torch.Stream()"),
    "Stream positions": ("torch.cuda.Stream(rank, -1)", "torch.Stream(rank, priority=-1)"),
    "Stream keywords": (
        "torch.cuda.Stream(device=rank, priority=-1)",
        "torch.Stream(device=rank, priority=-1)",
    ),
    "Stream annotation": ("def f(s: torch.cuda.Stream): pass", "def f(s: torch.Stream): pass"),
    "Event": ("torch.cuda.Event(enable_timing=True)", "torch.Event(enable_timing=True)"),
    "Event position": ("torch.cuda.Event(True, False)", "torch.Event(enable_timing=True, blocking=False)"),
    "device of an int": ("with torch.cuda.device(1): pass", "with torch.accelerator.device_index(1): pass"),
    "device of int()": (
        "with torch.cuda.device(device=int(i)): pass",
        "with torch.accelerator.device_index(int(i)): pass",
    ),
    "device of something": (
        "with torch.cuda.device(d): pass",
        "with torch.get_device_module().device(d): pass",
    ),
    "memory": (
        "torch.cuda.max_memory_allocated(device=d) - torch.cuda.memory_reserved(0)",
        "torch.accelerator.max_memory_allocated(d) - torch.accelerator.memory_reserved(0)",
    ),
    "memory by submodule": (
        "torch.cuda.memory.memory_allocated()",
        "torch.accelerator.memory_allocated()",
    ),
    "peak": (
        "torch.cuda.reset_peak_memory_stats(); torch.cuda.reset_max_memory_allocated()",
        "torch.accelerator.reset_peak_memory_stats(); torch.accelerator.reset_peak_memory_stats()",
    ),
    "mem_get_info": (
        "free, total = torch.cuda.mem_get_info()",
        "free, total = torch.accelerator.get_memory_info()",
    ),
    "memory_summary": (
        "print(torch.cuda.memory_summary())",
        "print(torch.get_device_module().memory_summary())",
    ),
    "OutOfMemoryError": (
        "try: pass\nexcept torch.cuda.OutOfMemoryError: pass",
        "try: pass\nexcept torch.OutOfMemoryError: pass",
    ),
    "rng state": (
        "torch.cuda.set_rng_state(torch.cuda.get_rng_state('cuda'), device='cuda')",
        "torch.get_device_module().set_rng_state(torch.get_device_module().get_rng_state"
        f"({ACC}), device={ACC})",
    ),
    "get_device_properties": (
        "torch.cuda.get_device_properties(0).total_memory",
        "torch.get_device_module().get_device_properties(0).total_memory",
    ),
    "a function that is not called": (
        "sync = torch.cuda.synchronize if torch.cuda.is_available() else None",
        "sync = torch.accelerator.synchronize if torch.accelerator.is_available() else None",
    ),
    # ---- calls that did nothing without CUDA
    "manual_seed": (
        "torch.cuda.manual_seed_all(seed)  # all",
        "if torch.accelerator.is_available():\n    torch.get_device_module().manual_seed_all(seed)  # all",
    ),
    "empty_cache, indented": (
        "def f():\n\tif a:\n\t\ttorch.cuda.empty_cache()\n\treturn 1",
        "def f():\n\tif a:\n\t\tif torch.accelerator.is_available():\n"
        "\t\t\ttorch.accelerator.empty_cache()\n\treturn 1",
    ),
    "manual_seed under a condition": (
        "if use_cuda:\n    torch.cuda.manual_seed(1)",
        "if use_cuda:\n    torch.get_device_module().manual_seed(1)",
    ),
    "manual_seed under the other branch": (
        "if use_cuda:\n    pass\nelse:\n    torch.cuda.manual_seed(1)",
        "if use_cuda:\n    pass\nelse:\n    if torch.accelerator.is_available():\n"
        "        torch.get_device_module().manual_seed(1)",
    ),
    # ---- names
    "import as": (
        "import torch as t\nt.cuda.synchronize()\nx.cuda()",
        "import torch as t\nt.accelerator.synchronize()\nx.to(t.accelerator.current_accelerator())",
    ),
    "from torch import cuda": (
        "import torch\nfrom torch import cuda, nn\ncuda.synchronize()",
        "import torch\nfrom torch import nn\ntorch.accelerator.synchronize()",
    ),
    "from torch import cuda alone": (
        "from torch import cuda  # why\n\nn = cuda.device_count()",
        "import torch  # why\n\nn = torch.accelerator.device_count()",
    ),
    "two of three names": (
        "import torch\nfrom torch.cuda import Event, Stream, nvtx\ns, e = Stream(), Event()",
        "import torch\nfrom torch.cuda import nvtx\ns, e = torch.Stream(), torch.Event()",
    ),
    "the last names": (
        "import torch\nfrom torch.cuda import nvtx, Event, Stream\ns, e = Stream(), Event()",
        "import torch\nfrom torch.cuda import nvtx\ns, e = torch.Stream(), torch.Event()",
    ),
    "an import with its comment": (
        "import torch\nfrom torch.cuda import Event  # timing\ne = Event()",
        "import torch\n# timing\ne = torch.Event()",
    ),
    "an import as the only statement of a block stays": (
        "import torch\ndef f():\n    from torch.cuda import Event\ne = torch.cuda.Event()",
        "import torch\ndef f():\n    from torch.cuda import Event\ne = torch.Event()",
    ),
    "an import in a function": (
        "def f():\n    import torch\n    return torch.cuda.device_count()",
        "def f():\n    import torch\n    return torch.accelerator.device_count()",
    ),
    "no import of torch": (
        '"""Doc."""\nfrom __future__ import annotations\n\nimport os\n\nx.cuda()',
        f'"""Doc."""\nfrom __future__ import annotations\n\nimport torch\nimport os\n\nx.to({ACC})',
    ),
    "import beside others of torch": (
        "import os\nimport torch.nn as nn\nnet = nn.Linear(1, 1).cuda()",
        f"import os\nimport torch\nimport torch.nn as nn\nnet = nn.Linear(1, 1).to({ACC})",
    ),
    "torch may be missing": (
        "try:\n    import torch\nexcept ImportError:\n    torch = None\ntorch.cuda.synchronize()",
        "try:\n    import torch\nexcept ImportError:\n    torch = None\ntorch.accelerator.synchronize()",
    ),
    "over two lines": (
        "(torch.cuda\n    .synchronize)()",
        "(torch.accelerator.synchronize)()",
    ),
    # ---- methods
    "cuda()": ("y = x.cuda()", f"y = x.to({ACC})"),
    "cuda(0)": ("y = x.cuda(0)", "y = x.to(0)"),
    "cuda(rank)": ("net = Net().cuda(rank)", "net = Net().to(rank)"),
    "cuda(device=rank)": ("x.cuda(device=rank)", "x.to(device=rank)"),
    "cuda(None)": ("x.cuda(None)", f"x.to({ACC})"),
    "cuda(non_blocking)": ("x.cuda(non_blocking=True)", f"x.to({ACC}, non_blocking=True)"),
    "cuda by position": ("x.cuda(0, True)", "x.to(0, non_blocking=True)"),
    "cuda, over lines": (
        "x.cuda(  # there\n    non_blocking=True,  # and back\n)",
        f"x.to(  # there\n    {ACC}, non_blocking=True,  # and back\n)",
    ),
    "cuda() of cuda()": ("f(a.cuda()).cuda()", f"f(a.to({ACC})).to({ACC})"),
    "cuda(current_device())": (
        "x.cuda(torch.cuda.current_device())",
        "x.to(torch.accelerator.current_device_index())",
    ),
    "cuda of what may be None": (
        "def f(gpu=None):\n    x.cuda(gpu)",
        f"def f(gpu=None):\n    x.to({ACC} if gpu is None else gpu)",
    ),
    "cuda of what is not None here": (
        "def f(gpu=None):\n    if ok and gpu is not None:\n        x.cuda(gpu)",
        "def f(gpu=None):\n    if ok and gpu is not None:\n        x.to(gpu)",
    ),
    "cuda of an option": (
        "parser.add_argument('--gpu', type=int)\nx.cuda(args.gpu, non_blocking=True)",
        "parser.add_argument('--gpu', type=int)\n"
        f"x.to({ACC} if args.gpu is None else args.gpu, non_blocking=True)",
    ),
    "cuda of an option with a default": (
        "parser.add_argument('--gpu', type=int, default=0)\nx.cuda(args.gpu)",
        "parser.add_argument('--gpu', type=int, default=0)\nx.to(args.gpu)",
    ),
    "is_cuda": ("if x.is_cuda: pass", f"if x.device.type == str({ACC}): pass"),
    "not is_cuda": ("a = not x.w.is_cuda and b", f"a = not x.w.device.type == str({ACC}) and b"),
    "is_cuda in an expression": ("x.is_cuda != y", f"(x.device.type == str({ACC})) != y"),
    # ---- devices
    "to": ('x.to("cuda")', f"x.to({ACC})"),
    "to with a dtype": ("x.to('cuda', torch.half)", f"x.to({ACC}, torch.half)"),
    "to(device=)": ('x.to(device="cuda", non_blocking=True)', f"x.to(device={ACC}, non_blocking=True)"),
    "to cuda:0": ('x.to("cuda:0")', f'x.to(f"{{{ACC}}}:0")'),
    "f-string": ('x.to(f"cuda:{rank}")', f'x.to(f"{{{ACC}}}:{{rank}}")'),
    "f-string with a format": ("d = f'cuda:{i + 1!s:>1}'", f"d = f'{{{ACC}}}:{{i + 1!s:>1}}'"),
    "format": ('loc = "cuda:{}".format(gpu)', f'loc = f"{{{ACC}}}:{{{{}}}}".format(gpu)'),
    "percent": ("'cuda:%d' % rank", f"f'{{{ACC}}}:%d' % rank"),
    "plus": ('"cuda:" + str(rank)', f'f"{{{ACC}}}:" + str(rank)'),
    "raw string": ("d = r'cuda:0'", f"d = fr'{{{ACC}}}:0'"),
    "torch.device": ('device = torch.device("cuda")', f"device = {ACC}"),
    "torch.device with an index": (
        'torch.device("cuda", rank)',
        f"torch.device({ACC}.type, rank)",
    ),
    "torch.device cuda:0": ('torch.device("cuda:0")', f'torch.device(f"{{{ACC}}}:0")'),
    "the usual choice": (
        'device = "cuda" if torch.cuda.is_available() else "cpu"',
        f'device = {ACC}.type if torch.accelerator.is_available() else "cpu"',
    ),
    "the usual choice of a device": (
        "d = torch.device('cuda:0' if torch.cuda.is_available() and n else 'cpu')",
        f"d = torch.device(f'{{{ACC}}}:0' if torch.accelerator.is_available() and n else 'cpu')",
    ),
    "the other way round": ('x = "cpu" if a else "cuda"', f'x = "cpu" if a else {ACC}.type'),
    "device= of torch": (
        "from torch import nn\nnn.Linear(1, 1, device='cuda')",
        f"import torch\nfrom torch import nn\nnn.Linear(1, 1, device={ACC})",
    ),
    "device= of a function of the script's own": ("train(device='cuda')", f"train(device=str({ACC}))"),
    "new_zeros": ("x.new_zeros(2, device='cuda')", f"x.new_zeros(2, device={ACC})"),
    "map_location": ("torch.load(f, map_location='cuda')", f"torch.load(f, map_location={ACC})"),
    "map_location by position": ("torch.load(f, 'cuda')", f"torch.load(f, {ACC})"),
    "map_location of names": (
        "torch.load(f, map_location={'cuda:0': 'cuda:%d' % rank})",
        f"torch.load(f, map_location={{f'{{{ACC}}}:0': f'{{{ACC}}}:%d' % rank}})",
    ),
    "a variable": ("device = 'cuda'", f"device = str({ACC})"),
    "an attribute": ("self.device: str = 'cuda'", f"self.device: str = str({ACC})"),
    "a parameter": ("def f(x, device='cuda'): pass", f"def f(x, device=str({ACC})): pass"),
    "a key": ("config = {'device': 'cuda'}", f"config = {{'device': str({ACC})}}"),
    "a variable that is used as a device": (
        "where = 'cuda'\nx.to(where)",
        f"where = str({ACC})\nx.to(where)",
    ),
    "a parameter that is used as a device": (
        "def f(where='cuda'):\n    x.to(device=where)",
        f"def f(where=str({ACC})):\n    x.to(device=where)",
    ),
    "an option": (
        "parser.add_argument('--device', default='cuda', choices=['cpu', 'cuda'])",
        f"parser.add_argument('--device', default=str({ACC}), choices=['cpu', str({ACC})])",
    ),
    "an option of click": (
        "@click.option('--device', default='cuda')\ndef f(): pass",
        f"@click.option('--device', default=str({ACC}))\ndef f(): pass",
    ),
    "a loop": ("for device in ['cpu', 'cuda']: pass", f"for device in ['cpu', str({ACC})]: pass"),
    "type ==": ('if x.device.type == "cuda": pass', f"if x.device.type == str({ACC}): pass"),
    "type !=": ("device.type!='cuda'", f"device.type!=str({ACC})"),
    "literal first": ("'cuda' == device_type", f"str({ACC}) == device_type"),
    "in device": ("'cuda' in args.device", f"str({ACC}) in args.device"),
    "in str(device)": ("'cuda' not in str(device)", f"str({ACC}) not in str(device)"),
    "type in": ("d.type in ('cuda', 'xpu')", f"d.type in (str({ACC}), 'xpu')"),
    "startswith": ("device.startswith('cuda')", f"device.startswith(str({ACC}))"),
    # ---- mixed precision
    "autocast": (
        "with torch.autocast('cuda'): pass",
        f"with torch.autocast({ACC}.type): pass",
    ),
    "autocast by keyword": (
        "torch.amp.autocast(device_type='cuda', dtype=torch.half)",
        f"torch.amp.autocast(device_type={ACC}.type, dtype=torch.half)",
    ),
    "autocast with enabled": (
        "torch.autocast('cuda', enabled=amp)",
        f'torch.autocast(({ACC} or torch.device("cpu")).type, enabled=amp)',
    ),
    "cuda.amp.autocast": (
        "with torch.cuda.amp.autocast(): pass",
        f"with torch.amp.autocast({ACC}.type): pass",
    ),
    "cuda.amp.autocast positions": (
        "torch.cuda.amp.autocast(True, torch.half)",
        f"torch.amp.autocast({ACC}.type, enabled=True, dtype=torch.half)",
    ),
    "autocast that is not enabled": (
        "torch.cuda.amp.autocast(False)",
        f'torch.amp.autocast(({ACC} or torch.device("cpu")).type, enabled=False)',
    ),
    "from torch.cuda.amp": (
        "import torch\nfrom torch.cuda.amp import GradScaler, autocast\n\n"
        "scaler = GradScaler()\n@autocast()\ndef f(): pass",
        "import torch\n\n"
        f"scaler = torch.amp.GradScaler({ACC}.type)\n@torch.amp.autocast({ACC}.type)\ndef f(): pass",
    ),
    "from torch.cuda import amp": (
        "import torch\nfrom torch.cuda import amp\nscaler = amp.GradScaler(enabled=a)",
        f'import torch\nscaler = torch.amp.GradScaler(({ACC} or torch.device("cpu")).type, enabled=a)',
    ),
    "torch.amp.GradScaler": ("torch.amp.GradScaler('cuda')", f"torch.amp.GradScaler({ACC}.type)"),
    "GradScaler annotation": (
        "def f(s: torch.cuda.amp.GradScaler): pass",
        "def f(s: torch.amp.GradScaler): pass",
    ),
    # ---- groups
    "nccl": (
        "import torch.distributed as dist\ndist.init_process_group('nccl')",
        "import torch.distributed as dist\ndist.init_process_group()",
    ),
    "backend=nccl": (
        "torch.distributed.init_process_group(backend='nccl', init_method='env://')",
        "torch.distributed.init_process_group(init_method='env://')",
    ),
    "backend=nccl at the end": (
        "from torch.distributed import init_process_group\ninit_process_group(rank=rank, backend='nccl')",
        "from torch.distributed import init_process_group\ninit_process_group(rank=rank)",
    ),
    "backend on a line of its own": (
        "torch.distributed.init_process_group(\n    backend='nccl',\n    rank=rank,\n)",
        "torch.distributed.init_process_group(\n    rank=rank,\n)",
    ),
    "backend with a comment": (
        "torch.distributed.init_process_group(\n    backend='nccl',  # fast\n    rank=rank,\n)",
        "torch.distributed.init_process_group(\n    # fast\n    rank=rank,\n)",
    ),
    "nccl before other positions": (
        "torch.distributed.init_process_group('nccl', 'env://')",
        "torch.distributed.init_process_group(None, 'env://')",
    ),
    "new_group": (
        "import torch.distributed as d\nd.init_process_group('nccl')\nd.new_group([0], backend='nccl')",
        "import torch.distributed as d\nd.init_process_group()\nd.new_group([0])",
    ),
    "a script that asks for the backend": (
        "import torch\nfrom torch import distributed as d\nd.init_process_group('nccl')\nd.get_backend()",
        f"import torch\nfrom torch import distributed as d\nd.init_process_group({BACKEND})\nd.get_backend()",
    ),
    "a choice of backends": (
        "backend = 'nccl' if torch.cuda.is_available() else 'gloo'",
        f"backend = {BACKEND} if torch.accelerator.is_available() else 'gloo'",
    ),
    "a variable with a backend": (
        "args.dist_backend = 'nccl'",
        f"args.dist_backend = {BACKEND}",
    ),
    "an option with a backend": (
        "parser.add_argument('--dist-backend', default='nccl')",
        f"parser.add_argument('--dist-backend', default={BACKEND})",
    ),
    "init_device_mesh": (
        "from torch.distributed.device_mesh import init_device_mesh\ninit_device_mesh('cuda', (2,), ('tp',))",
        "import torch\nfrom torch.distributed.device_mesh import init_device_mesh\n"
        f"init_device_mesh({ACC}.type, (2,), ('tp',))",
    ),
}

# What has to stay as it is, to the byte.
UNCHANGED: dict[str, str] = {
    "a docstring": '"""Runs on cuda."""\n"cuda:0"',
    "a comment": "x = 1  # x.cuda() on cuda:0, torch.cuda.synchronize()",
    "text": "print('no cuda here', f'cuda:{rank} is busy', 'nccl failed')",
    "another cuda": "from numba import cuda\ncuda.synchronize()",
    "a parameter called cuda": "def f(cuda):\n    cuda.synchronize()",
    "a parameter called torch": "def f(torch):\n    torch.cuda.synchronize()",
    "a setting called cuda": "if args.cuda: pass",
    "another mode": "if mode == 'cuda': pass",
    "an annotation": "def f(d: Literal['cuda:0', 'cpu']): pass",
    "a pattern": "match d:\n    case 'cuda:0': pass",
    "gloo": "import torch.distributed as dist\ndist.init_process_group('gloo')",
    "another init_process_group": "def init_process_group(b): pass\ninit_process_group('x')",
    "options of a group": "import torch.distributed as d\nd.init_process_group('nccl', pg_options=o)",
    "a backend in an f-string": 'f\'{"nccl" if a else "gloo"}\'',
    "a group beside gloo": (
        "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.new_group(backend='nccl')"
    ),
    "two meanings": (
        "try:\n    from torch.cuda.amp import autocast\nexcept ImportError:\n    autocast = my\nautocast()"
    ),
    "own method": "class A:\n    def cuda(self): pass\nA().cuda()",
    "own attribute": "class A:\n    def __init__(self):\n        self.is_cuda = True\nA().is_cuda",
    "TorchScript": ("@torch.jit.script\ndef f(x):\n    y = x.cuda()\n    return x.is_cuda, y.to('cuda:0')"),
    "storages": (
        "torch.load(f, map_location=lambda s, location: s.cuda(rank))\n"
        "torch.load(f, lambda s, location: s.cuda())\n"
        "def load(storage, location): return storage.cuda(0)\n"
        "x.untyped_storage().cuda()"
    ),
    "a guard of what CUDA alone has": (
        "a = torch.cuda.is_available() and not torch.cuda.get_device_capability() < (8, 0)\n"
        "b = torch.cuda.utilization() if torch.cuda.is_available() else 0"
    ),
    "stars": "x.cuda(*args)\ntorch.cuda.Event(*args)\ntorch.cuda.amp.autocast(**options)",
    "handles": "s = torch.cuda.Stream()\nlaunch(s.cuda_stream)",
    "not called": "map(torch.Tensor.cuda, xs)",
    "names at large": "from torch.cuda import *\nsynchronize()",
    "what CUDA alone has": "torch.cuda.nvtx.range_push('a')\ng = torch.cuda.CUDAGraph()",
    "settings": "torch.backends.cudnn.benchmark = True",
}
