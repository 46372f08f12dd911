"""Sampling with torch from any Hugging Face causal LM, whole or with the adapters of many policies.

Requests of all policies on one model are decoded together. Where rows have ended, they leave, and
the next requests take their places, in an order that depends on the requests alone: the batch is a
function of the program. Leaves out: paged caches (vLLM has them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import numpy as np
import torch

from comas.engines.batcher import BatchedEngine
from comas.engines.hf.lanes import Lanes
from comas.engines.hf.packed import Packed, can_pack
from comas.engines.hf.prefill import PREFILL
from comas.engines.rows import LEAVE, by_policy, check_choices, check_context, check_policy
from comas.engines.tape import Tape
from comas.engines.weighing import Prompt, weigh_all
from comas.seams import (
    AdaptedModel,
    Adapter,
    CausalLM,
    EngineFacts,
    EnginePlan,
    Generation,
    Request,
    StaleWeights,
    Weighing,
    Weights,
    always,
)

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
    ) -> None:
        """`packed`: whether linear layers on a CPU may use copies in oneDNN's layout; `continuous`:
        whether rows may enter while others run, where the family's cache allows it; `prefill`:
        padded prompt tokens of a pass.
        """
        super().__init__(plan.worker)
        self.end_ids = np.array(sorted(plan.end_ids))
        self.pad_id = plan.pad_id
        self.context = plan.context
        self.max_rows = plan.max_rows
        self.meter = plan.meter
        self.packed = packed
        self.continuous = continuous
        self.prefill = prefill
        self.models = dict(models)
        self.policies = sorted(models)
        self.versions = dict.fromkeys(self.policies, 0)
        self._decoders: dict[str, Decoder] = {}
        for policy in self.policies:
            self._decoders[policy] = self._decoder_of(models[policy])
        # what rounds to bfloat16 draws other tokens in another batch
        dtypes = {decoder.model.dtype for decoder in self._decoders.values()}
        exact = dtypes <= {torch.float32, torch.float64}
        self.facts = EngineFacts(exact, margin_known=True, counts=True)

    def publish(self, policy: str, weights: Weights, version: int) -> None:
        """Sample from these weights; copies of earlier ones are forgotten."""
        check_policy(policy, self.policies)
        decoder = self._decoder_of(weights)
        if isinstance(weights, Adapter):
            if policy not in weights.shared.policies:
                raise StaleWeights(f"policy {policy!r} has no adapter on the base that it shares")
        elif decoder.packed is not None:  # bases of adapters do not change
            decoder.packed.forget()
        self._decoders[policy] = decoder
        self.models[policy] = weights
        self.versions[policy] = version

    @torch.no_grad()
    def generate(
        self, requests: Sequence[Request], wanted: Callable[[], bool] = always
    ) -> list[Generation]:
        """One generation per request, in their order. `wanted()` returning False means that all
        callers were cancelled: stop early and return partial generations.
        """
        check_context(requests, self.context)
        done: dict[int, Generation] = {}
        for decoder, order in self._by_decoder(requests):
            generations = decoder.decode([requests[place] for place in order], wanted)
            done.update(zip(order, generations, strict=True))
        return [done[place] for place in range(len(requests))]

    def weigh_all(
        self, weighings: Sequence[Weighing], wanted: Callable[[], bool] = always
    ) -> list[list[np.ndarray]]:
        """Per weighing and choice the log-probs of its tokens; nothing where nobody waits."""
        check_choices(weighings, self.context)
        weights: list[list[np.ndarray]] = [[] for _ in weighings]
        for decoder, order in self._by_decoder(weighings):
            if wanted():
                found = weigh_all([weighings[place] for place in order], decoder.behind)
                for place, of_choices in zip(order, found, strict=True):
                    weights[place] = of_choices
        return weights

    def _by_decoder(
        self, requests: Sequence[Request | Weighing]
    ) -> Iterator[tuple[Decoder, list[int]]]:
        """Each decoder that has requests, and their places, sorted by policy."""
        places = by_policy(requests, self.policies)
        for decoder in dict.fromkeys(self._decoders[policy] for policy in self.policies):
            own = [p for p in self.policies if self._decoders[p] is decoder]
            order = [place for policy in own for place in places[policy]]
            if order:
                yield decoder, order

    def _decoder_of(self, weights: Weights) -> Decoder:
        """The decoder that reads these weights; policies on one base share theirs."""
        for known in self._decoders.values():
            if known.reads(weights):
                return known
        if isinstance(weights, Adapter):
            return Decoder(self, weights.shared.model, weights.shared)
        return Decoder(self, weights.model, None)


class Decoder:
    """Decodes the requests of all policies on one model."""

    def __init__(self, engine: HFEngine, model: CausalLM, adapted: AdaptedModel | None) -> None:
        self.engine = engine
        self.model = model
        self.adapted = adapted
        self.packed = Packed(model) if engine.packed and can_pack(model) else None

    def reads(self, weights: Weights) -> bool:
        """Whether it samples from exactly these objects."""
        if isinstance(weights, Adapter):
            return self.adapted is weights.shared
        return self.adapted is None and self.model is weights.model

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """Keep adapters and copies of weights ready for many passes."""
        adapters = self.adapted.sampling() if self.adapted else nullcontext()
        packed = self.packed.running() if self.packed else nullcontext()
        with adapters, packed:
            yield

    def decode(self, requests: Sequence[Request], wanted: Callable[[], bool]) -> list[Generation]:
        """Generations of these requests, in their order. At most `max_rows` rows run; when enough
        of them have ended, the next ones take their places.
        """
        lanes = self._lanes()
        tape = Tape(requests, self.engine.end_ids, self.engine.meter)
        numbers = self._numbers([request.policy for request in requests])
        queue = _longest_first(requests)
        most = self.engine.max_rows
        with self._ready():
            while True:
                live_B = tape.alive_R[lanes.row_B]
                living = int(live_B.sum())
                if self._changes(lanes, living, len(live_B), bool(queue)):
                    free = most - living if lanes.mixes or not living else 0
                    entering = queue[:free]
                    queue = queue[free:]
                    prompts = [(numbers[row], requests[row].prompt_ids) for row in entering]
                    lanes.change(live_B, entering, prompts, tape.draw)
                else:
                    lanes.make_room(live_B)
                    lanes.drawn_B = tape.draw(lanes.step(), lanes.row_B)
                if not wanted() or not (queue or tape.alive_R[lanes.row_B].any()):
                    return tape.generations()

    def behind(self, prompts: Sequence[Prompt]) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Places of prompts and the logits behind each, at most `max_rows` prompts at once."""
        number = self._numbers([policy for policy, _ in prompts])
        most = self.engine.max_rows
        with self._ready():
            for first in range(0, len(prompts), most):
                part = range(first, min(first + most, len(prompts)))
                numbered = [(number[i], prompts[i][1]) for i in part]
                for places, logits_NV in self._lanes().behind(numbered):
                    yield [part[place] for place in places], logits_NV

    def _lanes(self) -> Lanes:
        return Lanes(
            self.model,
            self.adapted,
            self.engine.pad_id,
            self.engine.context,
            continuous=self.engine.continuous,
            prefill=self.engine.prefill,
        )

    def _numbers(self, policies: Sequence[str]) -> list[int]:
        """The number of each of these policies on this model."""
        if self.adapted is None:
            return [0] * len(policies)
        number = {policy: n for n, policy in enumerate(self.adapted.policies)}
        return [number[policy] for policy in policies]

    def _changes(self, lanes: Lanes, living: int, rows: int, queued: bool) -> bool:
        """Whether rows leave and enter now."""
        if not living:
            return True
        full = self.engine.max_rows if queued and lanes.mixes else rows
        share = LEAVE if lanes.moves and not queued else SHRINK
        return living < share * full


def _longest_first(requests: Sequence[Request]) -> list[int]:
    """Places of requests in the order in which they begin: what is left at the end is short, and
    prompts that are computed together are of similar length.
    """

    def key(place: int) -> tuple[int, int]:
        request = requests[place]
        return -request.sampling.max_tokens, -len(request.prompt_ids)

    return sorted(range(len(requests)), key=key)
