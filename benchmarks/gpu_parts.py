"""The parts of `gpu_minutes.py`, each of which says what it finds, and the process that runs them.

Leaves out: whoever starts that process again where a part hangs or kills it (`gpu_minutes`).
"""

from __future__ import annotations

import copy
import json
import os
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_team import clear, matmul_peak
from mixed import generate
from shapes import METHOD, adapter_learner, beside, clock, dealt, names, random_model
from training import flops

from comas.engines import hf
from comas.engines.vllm.proof import pairs_of
from comas.learners.lora.learner import AdapterLearner
from comas.learners.recipe import Recipe
from comas.learners.step import logprobs
from comas.learners.whole import FullLearner
from comas.program import VERSION
from comas.seams import EnginePlan, Generation, Request, WholeModel
from comas.types import Row, Sampling

GPU = torch.cuda.is_available()
DATASHEET = 989e12
"""FLOP/s in bfloat16, not sparse, that NVIDIA names for an H100 SXM and an H200."""


class Scene:
    """The model, the work and the time of the part that runs."""

    def __init__(self, shape: str, out: Path, tiny: bool) -> None:
        self.shape = "tiny" if tiny else shape
        self.out = out
        self.tiny = tiny
        self.part = ""
        self.until = 0.0
        dtype = torch.bfloat16 if GPU else torch.float32
        self.model = random_model(self.shape, dtype, "cuda" if GPU else "cpu")
        self.questions, self.samples, self.prompt, self.new = (24, 8, 128, 64)
        if tiny:
            self.questions, self.samples, self.prompt, self.new = (3, 4, 12, 6)

    def say(self, **facts: Any) -> None:
        """Write a finding of the part under way."""
        print(json.dumps({"part": self.part, **facts}), flush=True)

    def left(self) -> float:
        """Seconds that the part has."""
        return self.until - time.time()

    def requests(self, agents: int, even: bool = False) -> list[Request]:
        """Each question as often as it has samples, dealt to agents."""
        rng = np.random.default_rng(0)
        vocabulary = self.model.config.vocab_size
        ids = [
            rng.integers(1, vocabulary, rng.integers(self.prompt // 2, self.prompt + 1))
            for _ in range(self.questions)
        ]
        places = list(range(self.questions * self.samples))
        owners = dealt(places, agents)
        if even:
            owners = {name: places[i::agents] for i, name in enumerate(names(agents))}
        sampling = Sampling(max_tokens=self.new)
        return [
            Request(name, ids[i // self.samples], sampling, i)
            for name, part in owners.items()
            for i in part
        ]

    def engine(self, weights: Any, captured: bool = False) -> hf.HFEngine:
        """An engine for all rows at once, none of which ends early; with `captured` token steps are
        one graph of CUDA.
        """
        rows = self.questions * self.samples
        context = self.prompt + self.new
        plan = EnginePlan(end_ids=[-1], pad_id=0, context=context, max_rows=rows)
        return hf.HFEngine(plan, weights, captured=captured)


Contestants = Mapping[str, Callable[[], object]]


def in_turn(
    scene: Scene, work: Contestants, tokens: int, plain: str, least: float = 0.0, **facts: Any
) -> None:
    """Say tokens per second of contestants that take turns, after a first run of each; and with
    `least`, seconds that the products alone take at the peak, their share of the peak.
    """
    first: dict[str, float] = {}
    peaks: dict[str, float] = {}
    seconds: dict[str, list[float]] = {name: [] for name in work}
    failed: dict[str, str] = {}
    for turn in range(1 + (1 if scene.tiny else 3)):
        if turn > 1 and scene.left() < sum(statistics.median(s) for s in seconds.values() if s):
            break
        for name, run in work.items():
            if name in failed or (turn == 0 and scene.left() < 0):
                failed.setdefault(name, "no time was left for its first run")
                continue
            before = torch.cuda.memory_allocated() if GPU else 0
            if GPU:
                torch.cuda.reset_peak_memory_stats()
            try:
                began = clock()
                run()
                took = clock() - began
            except Exception as error:  # noqa: BLE001 - the others are measured all the same
                failed[name] = f"{type(error).__name__}: {error}"[:300]
                continue
            first.setdefault(name, took)
            if turn:
                seconds[name].append(took)
            peaks[name] = (torch.cuda.max_memory_allocated() - before) / 1e9 if GPU else 0.0
    medians = {name: statistics.median(s) for name, s in seconds.items() if s}
    for name in work:
        if name not in medians:
            why = failed.get(name, "no time was left behind its first run")
            scene.say(**facts, who=name, failed=why)
            continue
        ratio = {"times_plain": medians[plain] / medians[name]} if plain in medians else {}
        share = {"share_of_peak": least / medians[name]} if least else {}
        spread = [min(seconds[name]), max(seconds[name])]
        scene.say(
            **facts,
            who=name,
            tokens_per_s=tokens / medians[name],
            **ratio,
            **share,
            seconds=medians[name],
            spread=spread,
            first=first[name],
            peak_GB=peaks[name],
        )


# --- parts


def card(scene: Scene) -> None:
    """The card, the versions, and what a product and a copy reach here."""
    packages = ("torch", "transformers", "peft", "triton", "vllm")
    versions = {name: version_of(name) for name in packages}
    scene.say(comas=VERSION, python=sys.version.split()[0], **versions, model=scene.shape)
    if GPU:
        properties = torch.cuda.get_device_properties(0)
        scene.say(card=properties.name, GB=properties.total_memory / 1e9, cuda=torch.version.cuda)
    block = torch.empty(2**30 if GPU else 2**20, dtype=torch.uint8, device=scene.model.device)
    block.clone()
    began = clock()
    block.clone()
    copied = 2 * len(block) / (clock() - began)
    peak = matmul_peak(scene.model)
    name = torch.cuda.get_device_name() if GPU else ""
    sheet = {"of_datasheet": peak / DATASHEET} if "H100" in name or "H200" in name else {}
    scene.say(matmul_tflops=peak / 1e12, **sheet, copy_GB_per_s=copied / 1e9)


def version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def rows_of(asked: Sequence[Request], said: Sequence[Generation]) -> dict[str, list[Row]]:
    """Replies as rows to learn from, policy by policy."""
    rows: dict[str, list[Row]] = {}
    for i, (request, reply) in enumerate(zip(asked, said, strict=True)):
        prompt = len(request.prompt_ids)
        ids = np.concatenate([request.prompt_ids, reply.token_ids])
        mask = np.arange(len(ids)) >= prompt
        none = np.zeros(len(ids), np.float32)
        sampled = np.concatenate([none[:prompt], reply.logprobs])
        reward = float(i % 3)
        row = Row(f"t{i}", "solution", 1.0, ids, mask, none, None, reward, sampled)
        rows.setdefault(request.policy, []).append(row)
    return dict(sorted(rows.items()))


def correct(scene: Scene) -> None:
    """One of four adapters learns; what engine, learner and transformers then say of its replies,
    against transformers in float64 with the adapter merged. comas is right where its gaps are those
    of transformers in the same dtype.
    """
    learner = adapter_learner(scene.model, 4, gap_limit=1e9)
    asked = scene.requests(4)
    engine = scene.engine(learner.weights())
    learner.step({"a00": rows_of(asked, engine.generate(asked))["a00"]})
    engine.publish("a00", learner.weights()["a00"], 1)
    rows = rows_of(asked, engine.generate(asked))["a00"][: 4 if scene.tiny else 24]
    shares = learner.shares
    readings: dict[str, list[Any]] = {"engine": [row.sampled_logprobs_T for row in rows]}
    for who, shared in (("learner, packs", True), ("learner, rows apart", False)):
        learner.shares = shared
        readings[who] = logprobs(learner, [("a00", row) for row in rows])
    learner.shares = shares
    readings["transformers"] = merged_logprobs(scene.model, learner, rows, scene.model.dtype)
    exact = merged_logprobs(scene.model, learner, rows, torch.float64)
    for who, found in readings.items():
        gaps = [
            np.abs(mine - right)[row.mask_T]
            for mine, right, row in zip(found, exact, rows, strict=True)
        ]
        gap = np.concatenate(gaps)
        scene.say(who=who, gap_mean=float(gap.mean()), gap_max=float(gap.max()))


@torch.no_grad()
def merged_logprobs(
    base: Any, learner: AdapterLearner, rows: Sequence[Row], dtype: torch.dtype
) -> list[np.ndarray]:
    """Per row log-probs (T,) that the base with the adapter a00 in its weights gives the tokens,
    without padding; 0 of the first.
    """
    model = copy.deepcopy(bare(base)).to(dtype)
    population = learner.population
    spec = population.specs["a00"]
    for name, (a, b) in pairs_of(population, "a00").items():
        weight = model.get_submodule(name).weight
        weight += (b.double() @ a.double() * (spec.alpha / spec.rank)).to(weight)
    found = []
    for row in rows:
        ids_1T = torch.from_numpy(row.token_ids_T).to(model.device)[None]
        logits_TV = model(input_ids=ids_1T, use_cache=False).logits[0, :-1]
        logprobs_TV = logits_TV.to(torch.promote_types(dtype, torch.float32)).log_softmax(-1)
        picked_T = logprobs_TV.gather(1, ids_1T[0, 1:, None])[:, 0]
        found.append(np.concatenate([[0.0], picked_T.cpu().numpy()]))
    return found


def bare(model: Any) -> Any:
    """Another module around the same weights, without hooks of adapters."""
    made = beside(model)
    for module in made.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    return made


def sample(scene: Scene) -> None:
    """Tokens per second of the engine `hf` with no, 1 and 16 adapters, and of `generate`."""
    many = 2 if scene.tiny else 16
    tokens = scene.questions * scene.samples * scene.new
    plain = scene.requests(1)
    bare = beside(scene.model)

    def ours(agents: int, even: bool = False, captured: bool = False) -> Callable[[], object]:
        learner = adapter_learner(beside(scene.model), agents)
        engine = scene.engine(learner.weights(), captured)
        asked = scene.requests(agents, even)
        return lambda: engine.generate(asked)

    whole = scene.engine({"a00": WholeModel(beside(scene.model))})
    work: dict[str, Callable[[], object]] = {
        "hf, base": lambda: whole.generate(plain),
        "hf, 1 adapter": ours(1),
        f"hf, {many} adapters": ours(many),
        f"hf, {many} adapters, dealt evenly": ours(many, even=True),
        f"hf, {many} adapters, steps as graphs": ours(many, captured=GPU),
        "generate": lambda: without_gradients(lambda: generate(bare, plain)),
    }
    rows = scene.questions * scene.samples
    in_turn(scene, work, tokens, "generate", rows=rows, new=scene.new)
    if GPU:  # a CPU compiles for minutes
        static = {
            "generate, static and compiled": lambda: without_gradients(
                lambda: generate(bare, plain, static=True)
            ),
            "hf, base": work["hf, base"],
        }
        in_turn(scene, static, tokens, "hf, base", rows=rows, new=scene.new)


@torch.no_grad()
def without_gradients(work: Callable[[], object]) -> None:
    work()


class Peft:
    """A plain loop with peft: one adapter after the other, rows of similar length padded on the
    right, autocast, fused AdamW, clipping, the head on all tokens.
    """

    def __init__(self, model: Any, parts: Mapping[str, Sequence[Row]], per_pass: int) -> None:
        from peft import LoraConfig, get_peft_model

        shape = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", lora_dropout=0.0)
        first, *others = parts
        self.model: Any = get_peft_model(beside(model), shape, adapter_name=first)
        for policy in others:
            self.model.add_adapter(policy, shape)
        self.model.eval()
        self.parts = parts
        self.per_pass = per_pass
        named = dict(self.model.named_parameters())
        self.weights = {p: [w for n, w in named.items() if f".{p}." in n] for p in parts}
        self.optimizers = {
            p: torch.optim.AdamW(weights, lr=1e-5, fused=True)
            for p, weights in self.weights.items()
        }

    def step(self) -> None:
        """One update of each policy, from advantages that are as good as any."""
        for policy, rows in self.parts.items():
            self.model.set_adapter(policy)
            tokens = float(sum(row.mask_T.sum() for row in rows))
            for chunk in self.chunks(rows):
                (self.loss(chunk) / tokens).backward()
            torch.nn.utils.clip_grad_norm_(self.weights[policy], 1.0)
            self.optimizers[policy].step()
            self.optimizers[policy].zero_grad()

    def chunks(self, rows: Sequence[Row]) -> list[list[Row]]:
        """Rows of similar length, at most `per_pass` padded tokens each."""
        chunks: list[list[Row]] = [[]]
        for row in sorted(rows, key=lambda row: len(row.token_ids_T)):
            if chunks[-1] and (len(chunks[-1]) + 1) * len(row.token_ids_T) > self.per_pass:
                chunks.append([])
            chunks[-1].append(row)
        return chunks

    def loss(self, rows: Sequence[Row]) -> torch.Tensor:
        """Minus the sum of advantages times log-probs of the generated tokens."""
        longest = max(len(row.token_ids_T) for row in rows)
        ids = np.zeros((len(rows), longest), np.int64)
        weights = np.zeros((len(rows), longest), np.float32)
        for i, row in enumerate(rows):
            ids[i, : len(row.token_ids_T)] = row.token_ids_T
            weights[i, : len(row.token_ids_T)] = (row.reward - 1.0) * row.mask_T
        device = self.model.device
        ids_BT, weights_BT = (torch.from_numpy(x).to(device) for x in (ids, weights))
        half = self.model.dtype == torch.bfloat16
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            output = self.model(input_ids=ids_BT, attention_mask=(ids_BT > 0).long())
        logprobs_BTV = output.logits[:, :-1].float().log_softmax(-1)
        picked_BT = logprobs_BTV.gather(2, ids_BT[:, 1:, None])[..., 0]
        return -(weights_BT[:, 1:] * picked_BT).sum()


def train(scene: Scene) -> None:
    """Tokens per second of a learning step, comas against peft, and its share of the peak."""
    per_pass = 128 if scene.tiny else 8192
    many = 2 if scene.tiny else 16
    recipe: dict[str, Any] = {"tokens_per_pass": per_pass, "old_logprobs": "first_pass"}
    rng = np.random.default_rng(2)

    def random_parts(agents: int) -> dict[str, list[Row]]:
        asked = scene.requests(agents)
        vocabulary = scene.model.config.vocab_size
        lengths = rng.integers(max(1, scene.new), 3 * scene.new + 1, len(asked))
        said = [
            Generation(rng.integers(1, vocabulary, n), np.zeros(n, np.float32), True, 1.0)
            for n in lengths
        ]
        parts = rows_of(asked, said)
        for row in (row for part in parts.values() for row in part):
            row.sampled_logprobs_T = None
        return parts

    parts = {agents: random_parts(agents) for agents in (1, many)}

    def ours(agents: int, shares: bool) -> Callable[[], object]:
        learner = adapter_learner(beside(scene.model), agents, share_prompts=shares, **recipe)
        return lambda: learner.step(copy.deepcopy(parts[agents]))

    work = {
        "comas, 1 adapter": ours(1, True),
        "comas, 1 adapter, rows apart": ours(1, False),
        f"comas, {many} adapters": ours(many, True),
        "peft, 1 adapter": Peft(scene.model, parts[1], per_pass).step,
        f"peft, {many} adapters in turn": Peft(scene.model, parts[many], per_pass).step,
    }
    rows = [row for part in parts[1].values() for row in part]
    tokens = sum(len(row.token_ids_T) for row in rows)
    least = flops(scene.model, rows) / matmul_peak(scene.model)
    in_turn(scene, work, tokens, "peft, 1 adapter", least, rows=len(rows))


def letters(size: int) -> Any:
    """A tokenizer of so many words: bytes, and letters in a row, as many as there is room for; so
    all that a random model says is text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    words = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    draw = random.Random(0)
    merges: list[tuple[str, str]] = []
    shorter = list(alphabet)
    while len(words) < size:
        longer = [(word, letter) for word in shorter for letter in alphabet]
        longer = draw.sample(longer, min(len(longer), size - len(words)))
        merges += longer
        shorter = [word + letter for word, letter in longer]
        words += shorter
    raw = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token=special[0], eos_token=special[2]
    )
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return tokenizer


def step(scene: Scene) -> None:
    """`comas train` with four adapters: what a dry run says of it, and what it then takes."""
    folder = scene.out / "base"
    model = beside(scene.model)
    tokenizer = letters(model.config.vocab_size)
    model.config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    del model
    clear(scene.model)
    room = 16 if scene.tiny else 128
    keys = [f"base={folder}", "task=sums", "agents=4", "steps=2", "seed=7"]
    # random replies cannot be read, and are judged and learnt from all the same
    keys += ["options.format_check=false"]
    keys += [f"questions={scene.questions}", f"samples={scene.samples}", "test_questions=8"]
    keys += ["eval_every=0", f"max_tokens={room}", f"room.solution={room}", "lr=1e-5"]
    dry = json.loads(comas(scene, *keys, f"out={scene.out / 'dry'}", "--dry-run", "--json"))
    memory = dry["memory"]
    scene.say(who="--dry-run", peak_GB=memory["peak"] / 1e9, estimated=memory.get("estimated"))
    run = scene.out / f"run-{os.getpid()}"
    began = time.time()
    comas(scene, *keys, f"out={run}")
    for line in (run / "metrics.jsonl").read_text().splitlines():
        found = json.loads(line)
        gaps = [p["gap_mean"] for p in found["policies"].values() if "gap_mean" in p]
        scene.say(
            who=f"step {found['step']}",
            seconds=found["seconds"],
            **found["spent"],
            tokens=found["step_tokens"],
            peak_GB=found["peak_bytes"] / 1e9,
            gap_mean=max(gaps, default=None),
        )
    scene.say(who="the whole command", seconds=time.time() - began)


def comas(scene: Scene, *arguments: str) -> str:
    """What a command of comas prints; an error where it fails."""
    command = [sys.executable, "-m", "comas", "train", *arguments]
    timeout = max(5.0, scene.left())
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode} of comas train: {done.stderr[-300:]}")
    return done.stdout


def whole(scene: Scene) -> None:
    """A whole model learns, in float32 beside a copy that is read, and is served: tokens per second
    of a step, and the engine's distance to the learner afterwards.
    """
    model = copy.deepcopy(bare(scene.model)).float().requires_grad_(True)
    recipe = Recipe(1e-5, tokens_per_pass=128 if scene.tiny else 8192, old_logprobs="first_pass")
    learner = FullLearner({"a00": model}, recipe, METHOD, 0, scene.model.dtype)
    engine = scene.engine(learner.weights())
    asked = scene.requests(1)
    rows = rows_of(asked, engine.generate(asked))
    tokens = sum(len(row.token_ids_T) for row in rows["a00"])
    in_turn(scene, {"comas": lambda: learner.step(copy.deepcopy(rows))}, tokens, "comas")
    engine.publish("a00", learner.weights()["a00"], 1)
    fresh = rows_of(asked, engine.generate(asked))["a00"]
    gaps = [
        np.abs(own - row.sampled_logprobs_T)[row.mask_T]
        for own, row in zip(logprobs(learner, [("a00", r) for r in fresh]), fresh, strict=True)
    ]
    scene.say(who="engine against learner", gap_mean=float(np.concatenate(gaps).mean()))


def waits(scene: Scene) -> None:
    """Places that wait for the GPU in a token step, as torch warns of them, and its kernels: the
    difference between replies of 12 and of 4 tokens.
    """
    if not GPU:
        scene.say(left_out="no GPU: benchmarks/waits.py counts on a pretended one")
        return
    learner = adapter_learner(scene.model, 4)
    waited: dict[int, Counter[str]] = {}
    profiles: dict[int, tuple[float, float, float]] = {}
    for new in (4, 12):
        scene.new = new
        engine = scene.engine(learner.weights())
        asked = scene.requests(4)
        engine.generate(asked)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            engine.generate(asked)
            torch.cuda.set_sync_debug_mode("default")
        waited[new] = Counter(f"{Path(w.filename).name}:{w.lineno}" for w in caught)
        profiles[new] = kernels_of(lambda engine=engine, asked=asked: engine.generate(asked))
    waited[12].subtract(waited[4])
    places = {place: n / 8 for place, n in waited[12].items() if n}
    kernels, busy, seconds = (
        (late - early) / 8 for late, early in zip(profiles[12], profiles[4], strict=True)
    )
    scene.say(
        who="a token step",
        waits=sum(places.values()),
        places=places,
        kernels=kernels,
        ms=1000 * seconds,
        busy_ms=1000 * busy,
    )


def kernels_of(work: Callable[[], object]) -> tuple[float, float, float]:
    """Kernels of this work, seconds in which they ran, and seconds that it takes unwatched."""
    began = clock()
    work()
    seconds = clock() - began
    with torch.profiler.profile() as profile:
        work()
        clock()
    on_gpu = [event for event in profile.key_averages() if event.device_type.name == "CUDA"]
    busy = sum(event.self_device_time_total for event in on_gpu) / 1e6
    return float(sum(event.count for event in on_gpu)), busy, seconds


def tests(scene: Scene) -> None:
    """The project's own tests of a GPU."""
    if not GPU:
        scene.say(left_out="no GPU")
        return
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "--tb=short"]
    log = scene.out / "tests.txt"
    with log.open("w") as file:
        timeout = max(5.0, scene.left())
        done = subprocess.run(
            command, cwd=root, stdout=file, stderr=file, timeout=timeout, check=False
        )
    *_, last = log.read_text().splitlines() or [""]
    scene.say(exit=done.returncode, last=last)


PARTS = {part.__name__: part for part in (card, correct, sample, train, step, whole, waits, tests)}


def work_on(parts: Sequence[tuple[str, float]], scene: Scene, end: float) -> None:
    """Run these parts in this process, and say where each begins and ends."""
    warnings.simplefilter("ignore")
    for name, limit in parts:
        print(json.dumps({"begins": name}), flush=True)
        scene.part = name
        scene.until = min(end, time.time() + limit)
        began = time.time()
        try:
            PARTS[name](scene)
        except Exception as error:  # noqa: BLE001 - the other parts are run all the same
            scene.say(failed=f"{type(error).__name__}: {error}"[:400])
        scene.say(took=time.time() - began)
        clear(scene.model)
        print(json.dumps({"ends": name}), flush=True)
