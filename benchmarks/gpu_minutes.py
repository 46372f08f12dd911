"""What comas does on one GPU, in minutes: `python benchmarks/gpu_minutes.py OUT [--seconds 540]
[--parts sample:120,train:100] [--model qwen2.5-0.5b] [--tiny]`.

Parts run in order of worth, each within its seconds: the card and what it reaches; log-probs of a
refreshed adapter; sampling against transformers' `generate` (plain, and static and compiled);
learning against a loop with peft; a step of `comas train` against what `--dry-run` said; waits of a
token step as torch counts them; `make test-gpu`. Contestants take turns in one process, on the same
work. A finding is a line of OUT/results.jsonl at once, so that what is cut off has said what it
knew; a part that fails, hangs or kills its process leaves the others alone. Tables are in
OUT/tables.md. Nothing is installed or fetched: weights are random, of real shapes. `--tiny` runs
all of it with a tiny model on whatever there is, on a CPU in float32.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import queue
import random
import signal
import statistics
import subprocess
import sys
import threading
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
from shapes import adapter_learner, beside, clock, dealt, names, random_model
from training import flops

from comas.engines import hf
from comas.learners.step import logprobs
from comas.program import VERSION
from comas.seams import EnginePlan, Generation, Request, WholeModel
from comas.types import Row, Sampling

ORDER = "card:40,refresh:40,sample:170,train:110,step:110,waits:30,tests:90"
GPU = torch.cuda.is_available()
GRACE = 15.0
"""Seconds that a part may be late."""
STARTING = 90.0
"""Seconds in which a process has to begin its first part: it imports torch."""


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
    scene.say(matmul_tflops=matmul_peak(scene.model) / 1e12, copy_GB_per_s=copied / 1e9)


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


def refresh(scene: Scene) -> None:
    """One of four adapters learns; what the engine then says must be what the learner says."""
    learner = adapter_learner(scene.model, 4, gap_limit=1e9)
    asked = scene.requests(4)
    engine = scene.engine(learner.weights())
    rows = rows_of(asked, engine.generate(asked))
    learner.step({"a00": rows["a00"]})
    engine.publish("a00", learner.weights()["a00"], 1)
    fresh = rows_of(asked, engine.generate(asked))
    owned = [("a00", row) for row in fresh["a00"]]
    own = logprobs(learner, owned)
    gaps = [
        np.abs(x - row.sampled_logprobs_T)[row.mask_T]
        for x, (_, row) in zip(own, owned, strict=True)
    ]
    gap = np.concatenate(gaps)
    scene.say(who="engine against learner", gap_mean=float(gap.mean()), gap_max=float(gap.max()))


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


def waits(scene: Scene) -> None:
    """Places that wait for the GPU in a token step, as torch warns of them: the difference between
    replies of 12 and of 4 tokens.
    """
    if not GPU:
        scene.say(left_out="no GPU: benchmarks/waits.py counts on a pretended one")
        return
    learner = adapter_learner(scene.model, 4)
    counted: dict[int, Counter[str]] = {}
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
        counted[new] = Counter(f"{Path(w.filename).name}:{w.lineno}" for w in caught)
    counted[12].subtract(counted[4])
    places = {place: n / 8 for place, n in counted[12].items() if n}
    scene.say(who="a token step", waits=sum(places.values()), places=places)


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


PARTS = {part.__name__: part for part in (card, refresh, sample, train, step, waits, tests)}


# --- processes, each with the parts that are left


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


class Lines:
    """Lines of a process, with a limit to the wait for each."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def next(self, until: float) -> str | None:
        """The next line; None where there is none any more. queue.Empty where it is late."""
        return self._lines.get(timeout=max(0.1, until - time.time()))


def supervise(
    parts: list[tuple[str, float]], command: Sequence[str], end: float, say: Callable[..., None]
) -> int:
    """Have one process run these parts; how many of them are over when it has ended."""
    listed = ",".join(f"{name}:{limit}" for name, limit in parts)
    process = subprocess.Popen(
        [*command, "--parts", listed, "--seconds", str(end - time.time()), "--here"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    lines = Lines(process)
    over = 0
    until = time.time() + STARTING
    try:
        while (line := lines.next(min(until, end + GRACE))) is not None:
            try:
                facts = json.loads(line)
            except ValueError:  # a library's own words
                continue
            if "begins" in facts:
                until = time.time() + parts[over][1] + GRACE
            elif "ends" in facts:
                over += 1
                until = time.time() + STARTING
            else:
                say(**facts)
    except queue.Empty:
        say(part=parts[over][0], failed="it was late, and was ended")
        over += 1
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if over < len(parts) and process.returncode != -signal.SIGKILL:
        say(part=parts[over][0], failed=f"its process ended with {process.returncode}")
        over += 1
    return over


def tables(found: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: per part a table of its findings."""
    text = []
    for part in dict.fromkeys(facts["part"] for facts in found):
        rows = [{k: v for k, v in f.items() if k != "part"} for f in found if f["part"] == part]
        rows = [row for row in rows if row.keys() != {"took"}]
        columns = list(dict.fromkeys(key for row in rows for key in row))
        text += [f"\n## {part}\n", "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
        text += ["| " + " | ".join(cell(row.get(key)) for key in columns) + " |" for row in rows]
    return "\n".join(text).strip() + "\n"


def cell(value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(cell(item) for item in value)
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "" if value is None else str(value).replace("|", "/").replace("\n", " ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--parts", default=ORDER, help="PART:SECONDS,...")
    parser.add_argument("--model", default="qwen2.5-0.5b", help="one of shapes.py")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    parts = [
        (name, float(limit)) for name, _, limit in (x.partition(":") for x in args.parts.split(","))
    ]
    if unknown := [name for name, _ in parts if name not in PARTS]:
        sys.exit(f"--parts: {unknown[0]!r} is none of {', '.join(PARTS)}")
    if not GPU and not args.tiny:
        sys.exit("no GPU here: nothing was measured (--tiny runs the same with a tiny model)")
    args.out.mkdir(parents=True, exist_ok=True)
    end = time.time() + args.seconds
    if args.here:
        work_on(parts, Scene(args.model, args.out, args.tiny), end)
        return
    command = [sys.executable, __file__, str(args.out), "--model", args.model]
    command += ["--tiny"] if args.tiny else []
    found: list[dict[str, Any]] = []
    with (args.out / "results.jsonl").open("w", buffering=1) as results:

        def say(**facts: Any) -> None:
            found.append(facts)
            results.write(json.dumps(facts) + "\n")

        while parts and time.time() < end:
            parts = parts[supervise(parts, command, end, say) :]
        for name, _ in parts:
            say(part=name, failed="no time was left")
    (args.out / "tables.md").write_text(tables(found), encoding="utf-8")
    print(tables(found), end="")
    if args.tiny and any("failed" in facts for facts in found):
        sys.exit("a part failed")


if __name__ == "__main__":
    main()
