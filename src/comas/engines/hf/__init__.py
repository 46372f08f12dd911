"""`engine = "hf"`: sampling with torch from any Hugging Face causal LM, whole or with the adapters
of many policies.

Requests of all policies on one model are decoded together. Where rows have ended, they leave, and
the next requests take their places, in an order that depends on the requests alone: the batch is a
function of the program. Leaves out: paged caches (vLLM has them), other processes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comas.engines.batcher import LEAVE, BatchedEngine, Places, Wanted
from comas.engines.hf.captured import Capture, Capturing, cuda_graph
from comas.engines.hf.lanes import PREFILL, Lanes, Prompt
from comas.engines.sampling import Tape, weigh_all
from comas.seams import (
    AdaptedModel,
    Adapter,
    CausalLM,
    Engine,
    EngineFacts,
    EnginePlan,
    Generation,
    Request,
    StaleWeights,
    Weighing,
    Weights,
)

LOG = logging.getLogger("comas")
LARGEST = 2_000_000_000
"""Parameters of a model above which a second copy of the weights is too much to ask for."""


def can_pack(model: Any) -> bool:
    """Whether this torch can pack the layers of this model on this processor."""
    return (
        torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and model.device.type == "cpu"
        and packs(model.dtype)
        and model.num_parameters() <= LARGEST
    )


def packs(dtype: torch.dtype) -> bool:
    """Whether this processor has products of this dtype with packed weights."""
    if dtype == torch.bfloat16:  # not on processors without AVX512
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32


class Packed:
    """Linear layers on a CPU with a copy of their weights, as they are at the first use, in the
    layout of oneDNN, in which products of few rows are quicker.

    Measured on one core: in float32 1.1 to 1.7 times as quick for 8 to 256 rows, in bfloat16 (with
    AVX512-BF16) 1.7 to 2.5 times for one row, 1.4 to 1.6 for 8, 1.1 for 64 and more; twice as quick
    in wide heads. torch has the operation for compiled models; it is called here as it is.
    """

    def __init__(self, model: Any) -> None:
        linear = [module for module in model.modules() if type(module) is torch.nn.Linear]
        self.layers = [layer for layer in linear if layer.weight.dtype == model.dtype]
        self.weights: list[Tensor] | None = None

    def forget(self) -> None:
        """Copy the weights anew at the next use."""
        self.weights = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """In here the model uses the copies; hooks on its layers work as ever, gradients do not."""
        if self.weights is None:
            reorder = torch.ops.mkldnn._reorder_linear_weight
            self.weights = [reorder(layer.weight.detach()) for layer in self.layers]
        for layer, weight in zip(self.layers, self.weights, strict=True):
            layer.forward = partial(_linear, layer, weight)  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield
        finally:
            for layer in self.layers:
                del layer.forward


def _linear(layer: torch.nn.Linear, packed: Tensor, input: Tensor) -> Tensor:
    # of one token in float32 the plain product is the quicker one
    if input.numel() == layer.in_features and input.dtype == torch.float32:
        return torch.nn.functional.linear(input, layer.weight, layer.bias)
    return torch.ops.mkldnn._linear_pointwise(input, packed, layer.bias, "none", [], "")


@contextmanager
def exact_logits(model: Any, token_ids: Sequence[int]) -> Iterator[None]:
    """In here the model's last product is in float32 for these tokens, and what follows it (caps,
    scales) too, where its weights are 16-bit halves.

    Logits between 16 and 32 are rounded to steps of .125 in bfloat16: of some 170 answers that a
    model weighed as right or wrong, the shares had eight values. Heads that are no plain linear
    layer round as they do.
    """
    head = model.get_output_embeddings()
    rounds = model.dtype in (torch.bfloat16, torch.float16)
    if not rounds or type(head) is not torch.nn.Linear:
        yield
        return
    columns = torch.tensor(token_ids, device=head.weight.device)
    rows_CH = head.weight.detach()[columns].float()
    bias_C = None if head.bias is None else head.bias.detach()[columns].float()

    def in_float32(_: Any, inputs: tuple[Tensor], logits: Tensor) -> Tensor:
        exact = torch.nn.functional.linear(inputs[0].float(), rows_CH, bias_C)
        return logits.float().index_copy(-1, columns, exact)

    hook = head.register_forward_hook(in_float32)
    try:
        yield
    finally:
        hook.remove()


SHRINK = 0.75
"""Fraction of the rows below which the living ones are packed, and waiting requests take the free
places.
"""


class HFEngine(BatchedEngine):
    """Samples for one or more policies, whose weights it reads in place."""

    def __init__(
        self,
        plan: EnginePlan,
        models: Mapping[str, Weights],
        *,
        packed: bool = True,
        continuous: bool = True,
        prefill: int = PREFILL,
        captured: bool = False,
        capture: Capture = cuda_graph,
    ) -> None:
        """`packed`: whether linear layers on a CPU may use copies in oneDNN's layout; `continuous`:
        whether rows may enter while others run, where the family's cache allows it; `prefill`:
        padded prompt tokens of a pass; `captured`: whether `capture` makes a graph of the steps of
        rows, for full attention.
        """
        super().__init__(plan, models)
        if plan.gpus > 1:
            LOG.warning(
                "hosts.%s.gpus=%d: engine hf samples on one of them; vllm uses all, where it is"
                " installed and serves adapters on one base",
                plan.host,
                plan.gpus,
            )
        self.pad_id = plan.pad_id
        self.max_rows = plan.max_rows
        self.packed = packed
        self.continuous = continuous
        self.prefill = prefill
        self.capturing = Capturing(capture if captured else None, plan.host)
        self.models = dict(models)
        self._decoders: dict[str, Decoder] = {}
        for policy in self.policies:
            self._decoders[policy] = self._decoder_of(models[policy])
        # what rounds to bfloat16 draws other tokens in another batch
        dtypes = {decoder.model.dtype for decoder in self._decoders.values()}
        exact = dtypes <= {torch.float32, torch.float64}
        self.facts = EngineFacts(exact, margin_known=True, counts=True)

    def _publish(self, policy: str, weights: Weights, version: int) -> None:
        """Sample from these weights; copies of earlier ones are forgotten."""
        decoder = self._decoder_of(weights)
        if isinstance(weights, Adapter):
            if policy not in weights.shared.policies:
                raise StaleWeights(f"policy {policy!r} has no adapter on the base that it shares")
        elif decoder.packed is not None:  # bases of adapters do not change
            decoder.packed.forget()
        self._decoders[policy] = decoder
        self.models[policy] = weights

    def _generate(
        self, requests: Sequence[Request], places: Places, wanted: Wanted
    ) -> Iterator[tuple[list[int], list[Generation]]]:
        for decoder, order in self._by_decoder(places):
            yield order, decoder.decode([requests[index] for index in order], wanted)

    def _weigh(
        self, weighings: Sequence[Weighing], places: Places, wanted: Wanted
    ) -> list[list[np.ndarray]]:
        # on a CPU a prompt of its own keeps a pass busy
        on_cpus = {decoder.model.device.type for decoder in self._decoders.values()} == {"cpu"}
        with ExitStack() as ready:
            for decoder, _ in self._by_decoder(places):
                ready.enter_context(decoder.ready())
            return weigh_all(weighings, self._behind, apart=on_cpus)

    def _behind(
        self, requests: Sequence[Request], token_ids: Sequence[int], common: int
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Places of requests and the logits behind each prompt, at most `max_rows` at once."""
        for decoder, order in self._by_decoder(self._by_policy(requests)):
            for first in range(0, len(order), self.max_rows):
                part = order[first : first + self.max_rows]
                asked = [requests[index] for index in part]
                for places, logits_NV in decoder.behind(asked, token_ids, common):
                    yield [part[index] for index in places], logits_NV

    def _by_decoder(self, places: Places) -> Iterator[tuple[Decoder, list[int]]]:
        """Each decoder that has requests, and their places, sorted by policy."""
        for decoder in dict.fromkeys(self._decoders[policy] for policy in self.policies):
            policies = [p for p in self.policies if self._decoders[p] is decoder]
            order = [index for policy in policies for index in places[policy]]
            if order:
                yield decoder, order

    def _decoder_of(self, weights: Weights) -> Decoder:
        """The decoder that reads exactly these objects; policies on one base share theirs."""
        adapted = weights.shared if isinstance(weights, Adapter) else None
        model = weights.shared.model if isinstance(weights, Adapter) else weights.model
        for decoder in self._decoders.values():
            if decoder.model is model and decoder.adapted is adapted:
                return decoder
        return Decoder(self, model, adapted)


class Decoder:
    """Decodes the requests of all policies on one model."""

    def __init__(self, engine: HFEngine, model: CausalLM, adapted: AdaptedModel | None) -> None:
        self.engine = engine
        self.model = model
        self.adapted = adapted
        self.reading = self._lanes()
        """Reader of prompts behind which nothing is sampled, within `ready`."""
        self.packed = Packed(model) if engine.packed and can_pack(model) else None

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Keep adapters and copies of weights ready for many passes."""
        adapters = self.adapted.sampling() if self.adapted else nullcontext()
        packed = self.packed.running() if self.packed else nullcontext()
        with adapters, packed:
            self.reading = self._lanes()
            yield

    def decode(self, requests: Sequence[Request], wanted: Wanted) -> list[Generation]:
        """Generations of these requests, in their order. At most `max_rows` rows run; when enough
        of them have ended, the next ones take their places.
        """
        lanes = self._lanes()
        tape = Tape(requests, self.engine.end_ids, self.engine.meter)
        prompts = self._prompts(requests)
        # what is left at the end is short, and prompts computed together are of similar length
        queue = sorted(
            range(len(requests)),
            key=lambda i: (-requests[i].sampling.max_tokens, -len(requests[i].prompt_ids)),
        )
        most = self.engine.max_rows
        with self.ready():
            while True:
                live_B = tape.alive_R[lanes.row_B]
                living = int(live_B.sum())
                if self._changes(lanes, living, len(live_B), bool(queue)):
                    free = most - living if lanes.mixes or not living else 0
                    entering = queue[:free]
                    queue = queue[free:]
                    begun = [prompts[row] for row in entering]
                    lanes.change(live_B, entering, begun, tape.draw)
                else:
                    lanes.make_room(live_B)
                    lanes.drawn_B = tape.draw(lanes.step(), lanes.row_B)
                if not wanted() or not (queue or tape.alive_R[lanes.row_B].any()):
                    return tape.generations()

    def behind(
        self, requests: Sequence[Request], token_ids: Sequence[int], common: int
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Places of requests and the logits behind each prompt, which are read together, or with
        `common` one by one (`sampling.Behind`); those of `token_ids` are in float32. To be called
        within `ready`.
        """
        prompts = self._prompts(requests)
        with exact_logits(self.model, token_ids):
            if common and self.reading.mixes:
                yield from self.reading.behind_head(prompts, common)
            else:
                yield from self.reading.behind(prompts)

    def _lanes(self) -> Lanes:
        return Lanes(
            self.model,
            self.adapted,
            self.engine.pad_id,
            self.engine.context,
            continuous=self.engine.continuous,
            prefill=self.engine.prefill,
            capturing=self.engine.capturing,
        )

    def _prompts(self, requests: Sequence[Request]) -> list[Prompt]:
        """Return for each request the number of its policy on this model, and its prompt."""
        if self.adapted is None:
            return [(0, request.prompt_ids) for request in requests]
        policies = list(self.adapted.policies)
        return [(policies.index(request.policy), request.prompt_ids) for request in requests]

    def _changes(self, lanes: Lanes, living: int, rows: int, queued: bool) -> bool:
        """Whether rows leave and enter now."""
        if not living:
            return True
        full = self.engine.max_rows if queued and lanes.mixes else rows
        share = LEAVE if lanes.moves and not queued else SHRINK
        return living < share * full


def build(plan: EnginePlan, models: Mapping[str, Weights]) -> Engine:
    """An engine for these policies."""
    return HFEngine(plan, models)
