"""A GPU's path on tensors that claim to lie on one and have no contents: what stays on the CPU,
waits for the GPU, or is float64 or an operator without a kernel on an Apple one, fails here.

Leaves out: what the numbers are, attention's own kernels on an Apple GPU, and autograd's engine:
backward passes of our own functions are called.
"""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchgen
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from comas.engines.hf.lanes import Lanes
from comas.engines.sampling import Tape
from comas.learners import passes
from comas.learners import step as old_policy
from comas.learners.logprobs import cut
from comas.learners.lora import layers
from comas.learners.lora import layers as blocks
from comas.learners.lora import population as adapters
from comas.learners.lora.learner import AdapterLearner
from comas.learners.lora.population import Population
from comas.learners.recipe import Recipe
from comas.learners.whole import FullLearner
from comas.seams import AdapterSpec, Request
from comas.types import Sampling
from tests.support.learning import METHOD, rows
from tests.support.models import llama

GPU = torch.device("cuda", 0)
# as torch numbers kinds of devices
NUMBERS = {"cuda": 1, "mps": 13}
META = 14
SPECS = {"a": AdapterSpec(4, 8.0), "b": AdapterSpec(3, 5.0), "c": AdapterSpec(2, 2.0)}


@cache
def operators() -> dict[str, str]:
    """What torch writes of each of its operators, by name and overload."""
    folder = Path(torchgen.__file__).parent / "packaged/ATen/native"
    _, *written = (folder / "native_functions.yaml").read_text().split("\n- func: ")
    return {text.partition("(")[0]: text for text in written}


def on_apple(name: str) -> bool:
    """Whether torch has this operator for Apple GPUs, or makes it of others that it has."""
    text = operators()[name]
    if delegate := re.search(r"structured_delegate: (\S+)", text):
        return on_apple(delegate[1])
    return "dispatch:" not in text or re.search(r"\bMPS\b|Composite", text) is not None


class AppleGPU(TorchDispatchMode):
    """Refuses what is done on an Apple GPU that cannot hold float64 and lacks some operators."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "mps":
                assert tensor.dtype != torch.float64, func
                name = func._schema.name.removeprefix("aten::")
                assert on_apple(f"{name}.{func._overloadname}".removesuffix(".default")), func
        return made


@pytest.fixture(autouse=True, params=["cuda", "mps"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors without contents, of which some are said to lie on a GPU, even where this torch knows
    none.
    """
    monkeypatch.setitem(globals(), "GPU", torch.device(request.param, 0))
    number = NUMBERS[request.param]
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        guards = (ctypes.c_void_p * 16).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    except (OSError, ValueError):
        pytest.skip("this torch keeps its devices elsewhere")
    kept, guards[number] = guards[number], guards[number] or guards[META]
    monkeypatch.setattr(blocks, "_hopper", lambda device: True)
    here = lambda t: t.device != GPU or pytest.fail("this waits for the GPU")  # noqa: E731
    monkeypatch.setattr(FakeTensor, "__bool__", here, raising=False)
    monkeypatch.setattr(FakeTensor, "numpy", lambda t: here(t) and np.zeros(t.shape), raising=False)
    # no contents that could be mixed up: shapes are all that is asked for
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(Population, "_try", run_once)
    watched = AppleGPU() if request.param == "mps" else nullcontext()
    with FakeTensorMode(allow_non_fake_inputs=True), watched:
        yield
    guards[number] = kept


def run_once(made: Population) -> None:
    for layer in made.layers:
        layer.ordered = True
    ids = torch.ones(len(made.policies), 2, dtype=torch.long, device=made.model.device)
    with torch.no_grad(), made.routed(range(len(made.policies))):
        made.model(input_ids=ids, use_cache=False)


def model(dtype: torch.dtype = torch.bfloat16, wide: int = 64) -> Any:
    # torch chooses among an Apple GPU's kernels of attention where it is built for one alone
    how = {"attn_implementation": "eager"} if GPU.type == "mps" else {}
    made = llama(hidden_size=wide, head_dim=16, tie_word_embeddings=False, **how)
    for module in made.modules():
        for name, weight in [*module.named_parameters(recurse=False)]:
            module._parameters[name] = torch.nn.Parameter(
                torch.empty_like(weight, dtype=dtype, device=GPU)
            )
        for name, buffer in [*module.named_buffers(recurse=False)]:
            module._buffers[name] = torch.empty_like(buffer, device=GPU)
    return made


class Saved:
    """What autograd hands to a function, whose engine wants a real GPU."""

    needs_input_grad = (True, True)

    def mark_dirty(self, tensor: Any) -> None: ...

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors


def on_gpu(tensor: Any, *shape: int) -> None:
    assert (tensor.device, tuple(tensor.shape)) == (GPU, shape)


@pytest.mark.parametrize(
    ("dtype", "wide", "counts"),
    [
        (torch.bfloat16, 64, (2, 2, 2)),
        (torch.bfloat16, 64, (1, 0, 3)),
        (torch.bfloat16, 100, (1, 0, 3)),
        (torch.float32, 64, (1, 0, 3)),
    ],
)
def test_adapters_forward_and_backward(
    dtype: torch.dtype, wide: int, counts: tuple[int, ...]
) -> None:
    made = Population(model(dtype, wide), SPECS)
    made.collect()
    assert made.rank == (adapters.ALIGNED if GPU.type == "cuda" else 4)  # the largest is 4
    with made.routed(np.repeat(np.arange(3), counts)):
        rows = sum(counts)
        leads = [(rows, 5), (rows * 5,), (rows, 1, 5)]
        for layer, lead in itertools.product(made.layers, leads):
            module = made.model.get_submodule(layer.name)
            saved = Saved()
            x, y = (
                torch.empty(*lead, n, dtype=dtype, device=GPU)
                for n in (module.in_features, module.out_features)
            )
            layer(module, (x,), y.clone())
            layers.Mixed.forward(saved, y, x, layer.a, layer, made.routing.route)  # type: ignore[arg-type]
            _, x_grad, *_ = layers.Mixed.backward(saved, torch.empty_like(y))
            on_gpu(x_grad, *x.shape)


@pytest.mark.parametrize("halved", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_log_probs_and_what_a_loss_is_made_of(halved: bool, whole: bool) -> None:
    base = model()
    given = (Recipe(1e-3), replace(METHOD, kl={}), 0)
    learner = (
        FullLearner({"b": base}, *given)
        if whole
        else AdapterLearner(Population(base, SPECS), *given, "base")
    )
    halves = cut(base) if halved else None
    vars(learner)["_halves"] = {base: halves} if whole else halves
    part = [(p, row) for p, count in (("a", 3), ("b", 1)) for row in rows(count, temperature=0.7)][
        -1 if whole else 0 :
    ]
    assert len(old_policy.logprobs(learner, part)) == len(part)
    if whole or not halved:  # the frozen head makes its slopes in the forward pass
        got = learner.forward(part, None)
        on_gpu(got, len(part), max(len(r.token_ids_T) for _, r in part))
        on_gpu(passes.pad([r.logprobs_T for _, r in part], got), *got.shape)


def test_decoding_waits_for_nothing_but_what_was_drawn() -> None:
    made = Population(model(), SPECS)
    common = np.arange(4, 44)
    ids = [np.append(common, 5), np.append(common, [6, 7]), common[:9], common]
    tape = Tape(
        [
            Request("a", x, Sampling(max_tokens=9, top_p=0.5, temperature=0.0), i)
            for i, x in enumerate(ids)
        ],
        np.array([3]),
    )
    lanes = Lanes(made.model, made, 0, 128)
    with torch.no_grad(), made.sampling():
        lanes.change(
            np.zeros(0, bool), [0, 1, 2], [(p, ids[i]) for i, p in enumerate((0, 0, 2))], tape.draw
        )
        on_gpu(lanes.step(), 3, 50)
        lanes.change(np.array([True, False, True]), [3], [(1, ids[3])], tape.draw)
        tape.draw(lanes.step(), lanes.row_B)
    assert lanes.row_B.tolist() == [0, 3, 2]


def test_merged_weights_lie_where_the_base_does() -> None:
    made = Population(model(), SPECS)
    for name, weight in made.merged("b").items():
        on_gpu(weight, *made.model.get_parameter(name).shape)


def test_what_an_apple_gpu_cannot_do_is_seen() -> None:
    assert on_apple("index_copy")
    assert not on_apple("linalg_eig")
    if GPU.type == "mps":
        with pytest.raises(AssertionError, match=r"aten\.zeros"):
            torch.zeros(1, dtype=torch.float64, device=GPU)
