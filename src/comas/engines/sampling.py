"""Drawing tokens by inverse CDF with counter-based noise, so that batching changes no text; what a
batch has drawn so far; and the log-probs of given continuations.

Draw t of a request uses one uniform number that depends on (request seed, t) alone. Arithmetic is
in fp64: the only way for two batches to differ is a logit that rounding moved across the edge of an
interval, and `margin` says how near each reply came to that. Leaves out: where the logits come
from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from comas.seams import Generation, Request, Weighing, in_float64, uploaded
from comas.types import Meter, Sampling


def uniforms(seeds: list[int], count: int) -> np.ndarray:
    """Noise of shape (len(seeds), count) in [0, 1), float64; row i depends on seeds[i] alone."""
    bits = np.random.Philox(key=0)
    noise = np.empty((len(seeds), count))
    generator = np.random.Generator(bits)
    fresh = bits.state
    # the state of Philox(key=seed), without the cost of making one
    for row, seed in zip(noise, seeds, strict=True):
        fresh["state"]["key"][:] = seed & (2**64 - 1), seed >> 64
        bits.state = fresh
        generator.random(out=row)
    return noise


@torch.no_grad()
def draw(
    logits_BV: torch.Tensor,
    noise_B: torch.Tensor,
    temperature_B: torch.Tensor,
    top_p_B: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids, their log-probs (nats, of softmax(logits / T); T = 1 for greedy rows) and margins
    (probability mass).

    Temperature 0 is greedy; its margin is the distance between the two best probabilities. With
    `top_p_B`, tokens are drawn from the smallest set of that mass, and the log-prob is still that
    of the whole softmax. Wherever the logits are, the rest may be on the CPU: what rows want is
    then known without waiting for a GPU. Results are on the CPU where an Apple GPU has the logits.
    """
    scaled_BV = in_float64(logits_BV)
    if scaled_BV is logits_BV:
        scaled_BV = logits_BV.clone()
    device = scaled_BV.device
    greedy = bool((temperature_B == 0).any())
    plain = bool(((temperature_B == 0) | (temperature_B == 1)).all())
    narrowed = top_p_B is not None and bool((top_p_B < 1).any())
    if device.type != "cpu":  # all in one upload
        top_p_of_all_B = torch.ones_like(noise_B) if top_p_B is None else top_p_B
        settings = (noise_B, temperature_B, top_p_of_all_B)
        settings_3B = uploaded(torch.stack([x.double() for x in settings]), device)
        noise_B, temperature_B, top_p_B = settings_3B
    greedy_B = temperature_B == 0
    divisor_B1 = torch.where(greedy_B, 1.0, temperature_B.double())[:, None]
    if not plain:
        scaled_BV /= divisor_B1
    highest_B1 = scaled_BV.amax(-1, keepdim=True)
    # in place: one more copy of so many numbers takes longer than both
    masses_BV = scaled_BV.sub_(highest_B1).exp_()
    sums_BN = _sums_of_blocks(masses_BV)
    whole_B1 = sums_BN.sum(-1, keepdim=True)
    kept_BV = masses_BV
    if top_p_B is not None and narrowed:
        kept_BV = _nucleus(masses_BV / whole_B1, top_p_B.double()) * whole_B1
        sums_BN = _sums_of_blocks(kept_BV)
    ids_B1, distance_B1 = _at(noise_B.double()[:, None], kept_BV, sums_BN)
    margin_B1 = distance_B1 / whole_B1
    if greedy:
        best_B2, best_ids_B2 = masses_BV.topk(2, dim=-1)
        ids_B1 = torch.where(greedy_B[:, None], best_ids_B2[:, :1], ids_B1)
        lead_B1 = (best_B2[:, :1] - best_B2[:, 1:]) / whole_B1
        margin_B1 = torch.where(greedy_B[:, None], lead_B1, margin_B1)
    chosen_B1 = in_float64(logits_BV.gather(1, ids_B1.to(logits_BV.device))) / divisor_B1
    logprob_B1 = chosen_B1 - highest_B1 - whole_B1.log()
    return ids_B1[:, 0], logprob_B1[:, 0], margin_B1[:, 0]


BLOCK = 512
"""Masses of a vocabulary that are summed up at once."""


def _sums_of_blocks(masses_BV: torch.Tensor) -> torch.Tensor:
    """The masses of each block, (B, N); the last one may be shorter."""
    even = masses_BV.shape[1] // BLOCK * BLOCK
    sums = [masses_BV[:, :even].unflatten(1, (-1, BLOCK)).sum(-1)] if even else []
    if even < masses_BV.shape[1]:
        sums.append(masses_BV[:, even:].sum(-1, keepdim=True))
    return torch.cat(sums, 1)


def _at(
    share_B1: torch.Tensor, masses_BV: torch.Tensor, sums_BN: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The token in whose interval this share of the row's mass lies, (B, 1), and the distance to
    the nearer end of the interval, in the masses' own unit.

    The block is found first, by the masses of blocks, and then the token in it: a running sum over
    a whole vocabulary takes longer than all else in drawing.
    """
    size = masses_BV.shape[1]
    ends_BN = sums_BN.cumsum(-1)
    point_B1 = share_B1 * ends_BN[:, -1:]
    block_B1 = _first_above(ends_BN, point_B1)
    start_B1 = torch.where(block_B1 > 0, ends_BN.gather(1, (block_B1 - 1).clamp(min=0)), 0.0)
    tokens_BK = block_B1 * BLOCK + torch.arange(min(BLOCK, size), device=masses_BV.device)
    inside_BK = masses_BV.gather(1, tokens_BK.clamp(max=size - 1)) * (tokens_BK < size)
    uppers_BK = inside_BK.cumsum(-1)
    # sums of a block differ by rounding from sums of its tokens: the point stays in the block
    end_B1 = torch.nextafter(uppers_BK[:, -1:], torch.zeros_like(point_B1))
    point_B1 = torch.minimum(point_B1 - start_B1, end_B1)
    token_B1 = _first_above(uppers_BK, point_B1)
    upper_B1 = uppers_BK.gather(1, token_B1)
    lower_B1 = upper_B1 - inside_BK.gather(1, token_B1)
    return tokens_BK.gather(1, token_B1), torch.minimum(upper_B1 - point_B1, point_B1 - lower_B1)


def _first_above(ends_BN: torch.Tensor, point_B1: torch.Tensor) -> torch.Tensor:
    """The first place whose end lies above the point, (B, 1)."""
    last = ends_BN.shape[1] - 1
    return torch.searchsorted(ends_BN, point_B1, right=True).clamp(max=last)


def _nucleus(probs_BV: torch.Tensor, top_p_B: torch.Tensor) -> torch.Tensor:
    ordered_BV, order_BV = probs_BV.sort(dim=-1, descending=True)
    before_BV = ordered_BV.cumsum(-1) - ordered_BV
    kept_BV = torch.where(before_BV < top_p_B[:, None], ordered_BV, 0.0)
    return torch.zeros_like(probs_BV).scatter(1, order_BV, kept_BV)


DRAWN = {"cpu": 2**21, "gpu": 2**25}
"""Probabilities, in float64, from which tokens are drawn at once, more where a vocabulary is
larger: bounds memory. A CPU's allocator keeps arrays of this size (16 MB) for the next part; a GPU
wants few calls.
"""


def drawn_at_once(vocabulary: int, on_gpu: bool) -> int:
    """Rows whose tokens are drawn at once."""
    return max(1, DRAWN["gpu" if on_gpu else "cpu"] // vocabulary)


def drawing_bytes(vocabulary: int, rows: int, on_gpu: bool) -> int:
    """Bytes of drawing a token for each of these rows: logits, probabilities, their sums and what
    is between.
    """
    return 8 * 4 * vocabulary * min(rows, drawn_at_once(vocabulary, on_gpu))


@dataclass
class Tape:
    """Record of what has been drawn so far for R requests; row r holds `length[r]` tokens."""

    requests: Sequence[Request]
    end_ids: np.ndarray
    meter: Meter = field(default_factory=Meter)

    def __post_init__(self) -> None:
        R = len(self.requests)
        self.limit_R = np.array([r.sampling.max_tokens for r in self.requests])
        self.ids_RT = np.zeros((R, int(self.limit_R.max())), dtype=np.int64)
        self.logprobs_RT = np.zeros(self.ids_RT.shape, dtype=np.float32)
        self.margin_R = np.ones(R)
        self.length_R = np.zeros(R, dtype=np.int64)
        self.alive_R = np.ones(R, dtype=bool)
        self.ended_R = np.zeros(R, dtype=bool)
        self.seconds_R = np.zeros(R)
        self.began = time.monotonic()
        self.noise_RT = uniforms([r.seed for r in self.requests], self.ids_RT.shape[1])
        self.temperature_R = np.array([r.sampling.temperature for r in self.requests])
        self.top_p_R = np.array([r.sampling.top_p for r in self.requests])

    def draw(self, logits_BV: torch.Tensor, rows_B: np.ndarray) -> np.ndarray:
        """Draw the next token of requests `rows_B`; entries of -1 are padding.

        Returns the ids, shape (B,).
        """
        rows = np.maximum(rows_B, 0)
        # rows that have ended draw what nobody reads
        step_B = np.minimum(self.length_R[rows], self.limit_R[rows] - 1)
        ids_B, logprobs_B, margin_B = self._drawn(logits_BV, rows, step_B)
        live_B = (rows_B >= 0) & self.alive_R[rows]
        live = rows[live_B]
        step = step_B[live_B]
        ids = ids_B[live_B]
        self.ids_RT[live, step] = ids
        self.logprobs_RT[live, step] = logprobs_B[live_B]
        self.margin_R[live] = np.minimum(self.margin_R[live], margin_B[live_B])
        self.length_R[live] = step + 1
        self.ended_R[live] = (ids[:, None] == self.end_ids).any(1)
        done = live[self.ended_R[live] | (self.limit_R[live] == step + 1)]
        self.alive_R[done] = False
        self.seconds_R[done] = time.monotonic() - self.began
        self.meter.tokens += len(live)
        self.meter.replies += len(done)
        return ids_B

    def _drawn(
        self, logits_BV: torch.Tensor, rows: np.ndarray, step_B: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """Ids, log-probs and margins, of `drawn_at_once` rows after each other."""
        settings = self.noise_RT[rows, step_B], self.temperature_R[rows], self.top_p_R[rows]
        inputs = (logits_BV, *map(torch.from_numpy, settings))
        size = drawn_at_once(logits_BV.shape[1], logits_BV.device.type != "cpu")
        slices = zip(*(tensor.split(size) for tensor in inputs), strict=True)
        # ids are exact in float64; a GPU is waited for once
        parts = [torch.stack([x.double() for x in draw(*of_part)]) for of_part in slices]
        ids_B, logprobs_B, margins_B = torch.cat(parts, 1).cpu().numpy()
        return ids_B.astype(np.int64), logprobs_B, margins_B

    def generations(self) -> list[Generation]:
        """Return the generation of each request, in their order."""
        return [
            Generation(
                self.ids_RT[row, :length].copy(),
                self.logprobs_RT[row, :length].copy(),
                bool(self.ended_R[row]),
                float(self.margin_R[row]),
                float(self.seconds_R[row]),
            )
            for row, length in enumerate(self.length_R)
        ]


READ = Sampling(max_tokens=1)
"""Sampling of a prompt behind which nothing is drawn."""
Behind = Callable[[Sequence[Request], Sequence[int], int], Iterable[tuple[Sequence[int], Tensor]]]
"""`behind(requests, token_ids, common)` -> places of some requests and the logits behind each
prompt, (N, V), those of `token_ids` in float32 or better, until all have had their turn. With
`common` prompts may be read one by one, and so many tokens of each before the others: once for
prompts in a row that begin with the same.
"""
_Key = tuple[str, bytes, int, tuple[bytes, ...]]
Cell = tuple[int, int, int]
"""Cell of a result: the number of the weighing, of its choice, of the choice's token."""


@torch.no_grad()
def weigh_all(
    weighings: Sequence[Weighing], behind: Behind, *, apart: bool
) -> list[list[np.ndarray]]:
    """Per weighing and choice the float32 log-probs of its tokens.

    With `apart` each weighing has passes of its own, so that its result never depends on what else
    is weighed at the time; what is asked twice is computed once, and so is what weighings have in
    common. Otherwise all share passes, and a result depends on its batch as far as the model's
    dtype rounds.
    """
    keys = [_key(weighing) for weighing in weighings]
    distinct = dict(zip(keys, weighings, strict=True))
    result_of: dict[_Key, list[np.ndarray]] = {}
    if apart:
        for key in sorted(distinct, key=lambda key: _head(distinct[key])):
            [result_of[key]] = _weigh_together([distinct[key]], behind, distinct[key].common)
    else:
        results = _weigh_together([*distinct.values()], behind, 0)
        result_of = dict(zip(distinct, results, strict=True))
    return [[logprobs.copy() for logprobs in result_of[key]] for key in keys]


def _key(weighing: Weighing) -> _Key:
    """Equal for weighings whose results are the same."""
    choices = tuple(choice.tobytes() for choice in weighing.choices)
    return weighing.policy, weighing.prompt_ids.tobytes(), weighing.common, choices


def _head(weighing: Weighing) -> tuple[str, bytes]:
    """Equal for weighings whose common tokens are read once."""
    return weighing.policy, weighing.prompt_ids[: weighing.common].tobytes()


def _weigh_together(
    weighings: Sequence[Weighing], behind: Behind, common: int
) -> list[list[np.ndarray]]:
    """Log-probs per weighing, choice and token, each read off the logits behind what precedes it.

    A choice of k tokens needs the logits behind the prompt and behind its own first k - 1 tokens;
    what choices share is asked for once, so that choices of one token each cost one prompt.
    """
    prompts: list[Request] = []
    cells_of: list[list[Cell]] = []
    """Per prompt, whose tokens are read off the logits behind it."""
    index_of: dict[tuple[str, bytes], int] = {}
    for number, weighing in enumerate(weighings):
        for which, choice in enumerate(weighing.choices):
            for t in range(len(choice)):
                ids = np.concatenate([weighing.prompt_ids, choice[:t]])
                index = index_of.setdefault((weighing.policy, ids.tobytes()), len(prompts))
                if index == len(prompts):
                    prompts.append(Request(weighing.policy, ids, READ, 0))
                    cells_of.append([])
                cells_of[index].append((number, which, t))
    token_ids = sorted({int(t) for w in weighings for choice in w.choices for t in choice})
    weights = [[np.zeros(len(c), np.float32) for c in w.choices] for w in weighings]
    for places, logits_NV in behind(prompts, token_ids, common):
        size = drawn_at_once(logits_NV.shape[1], logits_NV.device.type != "cpu")
        for start in range(0, len(places), size):
            logprobs_NV = in_float64(logits_NV[start : start + size]).log_softmax(-1)
            part = enumerate(places[start : start + size])
            cells = [(row, cell) for row, index in part for cell in cells_of[index]]
            rows = [row for row, _ in cells]
            tokens = [int(weighings[n].choices[which][t]) for _, (n, which, t) in cells]
            # a vocabulary per prompt stays on the device
            read = logprobs_NV[rows, tokens].tolist()
            for (_, (number, which, t)), logprob in zip(cells, read, strict=True):
                weights[number][which][t] = logprob
    return weights
