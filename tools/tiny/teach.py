"""Teach a tiny model from synthetic demonstrations: `python -m tools.tiny.teach NAME OUT`, minutes
on one CPU core.

Every draw comes from the course's seed and the number of steps is fixed, so that the same command
gives the same model on the same CPU and torch. Numbers start from Fourier features: without them
addition takes hours. Leaves out: any reward, verifier or held-out number set.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from comas.tasks import pick
from tools.tiny import facts, games, gate, repair
from tools.tiny.course import (
    CRITICISM,
    NUMBERS,
    POSING,
    VOCABULARY,
    VOTING,
    Course,
)
from tools.tiny.demonstrations import demonstration


def voter(seed: int, order: tuple[int, ...]) -> Course:
    """A solver with a habit of its own: it takes the numbers in `order`, and rather stops at a try
    that fits, so that votes of one such solver are right more often than its single answers, and
    votes of four with different orders far more often.
    """
    return Course(
        seed=seed,
        stop=0.33,
        stop_at_hit=0.65,
        order=order,
        peers=0.0,
        batch=VOTING,
        steps=3000,
    )


COURSES = {
    "seed": Course(form="three", seed=0),
    "tiny-two": Course(form="two", seed=0, stop=0.55),
    "tiny-b": Course(form="three", seed=1),
    "tiny-c": Course(form="three", seed=2),
    "tiny-hole": Course(form="three", seed=3, hole=True),
    "tiny-vote-0": voter(4, (0, 1, 2, 3)),
    "tiny-vote-1": voter(5, (3, 2, 1, 0)),
    "tiny-vote-2": voter(6, (1, 3, 0, 2)),
    "tiny-vote-3": voter(7, (2, 0, 3, 1)),
    "tiny-pose": Course(seed=8, batch=POSING, steps=2500),
    "tiny-critic": Course(seed=9, careless=0.26, batch=CRITICISM, steps=2000),
    "tiny-facts": facts.COURSE,
    "tiny-games": games.COURSE,
    "tiny-gate": gate.COURSE,
    "tiny-repair": repair.COURSE,
}
"""The tiny models that are shipped, and what each is taught."""

WIDTH = 96
"""Of the models that are shipped."""
PERIODS = (2, 3, 4, 5, 7, 10, 13, 20, 32, 64, 128)
"""Periods of the Fourier features of a number."""
HEADS_OF_EVEN_SIZE = 6
"""What divides a width: three heads, of which each turns pairs of numbers."""
LEAST_WIDTH = 24
"""The least of them in which the features of a number have room."""

TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}<assistant> {% else"
    " %}<user> {% endif %}{{ message['content'] }} <end> {% endfor %}{% if add_generation_prompt"
    " %}<assistant>{% endif %}"
)


def make_tokenizer(vocabulary: Sequence[str] = VOCABULARY) -> PreTrainedTokenizerFast:
    """One token per word; words are divided by spaces."""
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(vocabulary)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        eos_token="<end>",
        unk_token="<unk>",
        additional_special_tokens=["<user>", "<assistant>"],
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_model(seed: int, words: int = len(VOCABULARY), width: int = WIDTH) -> LlamaForCausalLM:
    """An untaught model that knows `words` words, drawn from `seed`: of 0.06M parameters at a
    `width` of 48, 0.23M at 96, 0.9M at 192.
    """
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.05,
        pad_token_id=0,
        eos_token_id=VOCABULARY.index("<end>"),
        bos_token_id=None,
        attn_implementation="eager",  # type: ignore[call-arg]
    )
    model = LlamaForCausalLM(config)
    first = VOCABULARY.index(NUMBERS[0])
    n = torch.arange(len(NUMBERS), dtype=torch.float32)[:, None]
    angle = 2 * math.pi * n / torch.tensor(PERIODS, dtype=torch.float32)
    features = torch.cat([angle.cos(), angle.sin(), n / len(NUMBERS)], dim=1)
    with torch.no_grad():
        embedding: Any = model.get_input_embeddings().weight
        embedding[first : first + len(NUMBERS), : features.shape[1]] = 0.15 * features
    return model


def batch(
    rng: random.Random, role: str, count: int, questions: list, course: Course
) -> tuple[torch.Tensor, torch.Tensor]:
    """`count` demonstrations of a role as ids_BT and the mask of their reply
    tokens, right-padded.
    """
    index = {w: i for i, w in enumerate(course.vocabulary)}
    rows = []
    starts = []
    for _ in range(count):
        prompt, reply = demonstration(rng, role, questions, course)
        head = f"<user> {prompt} <end> <assistant>".split()
        rows.append([index[w] for w in [*head, *reply.split(), "<end>"]])
        starts.append(len(head))
    ids_BT = torch.zeros(count, max(map(len, rows)), dtype=torch.long)
    mask_BT = torch.zeros(ids_BT.shape, dtype=torch.bool)
    for i, (row, start) in enumerate(zip(rows, starts, strict=True)):
        ids_BT[i, : len(row)] = torch.tensor(row)
        mask_BT[i, start : len(row)] = True
    return ids_BT, mask_BT


def role_loss(model: LlamaForCausalLM, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of the reply tokens, a scalar in nats."""
    hidden = model.model(input_ids=ids_BT).last_hidden_state[:, :-1][mask_BT[:, 1:]]
    return torch.nn.functional.cross_entropy(model.lm_head(hidden), ids_BT[:, 1:][mask_BT[:, 1:]])


def warm_questions(form: str) -> list:
    """Every puzzle of the `warm` split."""
    return pick.load("warm", form=form)


def teach(
    course: Course, steps: int, lr: float = 2e-3, width: int = WIDTH, log=print
) -> LlamaForCausalLM:
    """A model of `width` taught for `steps` optimizer steps."""
    model = make_model(course.seed, len(course.vocabulary), width)
    rng = random.Random(f"teach {course.seed}")
    questions = warm_questions(course.form)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    began = time.monotonic()
    sums = dict.fromkeys(course.batch, 0.0)
    for step in range(steps):
        scale = min(1.0, (step + 1) / 100) * min(1.0, (steps - step) / (0.3 * steps))
        for group in optimizer.param_groups:
            group["lr"] = lr * scale
        for role, count in course.batch.items():
            loss = role_loss(model, *batch(rng, role, count, questions, course))
            loss.backward()
            sums[role] += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % 100 == 0:
            log(
                f"{step + 1:5d} {time.monotonic() - began:6.0f}s "
                + " ".join(f"{r} {s / 100:.3f}" for r, s in sums.items())
            )
            sums = dict.fromkeys(course.batch, 0.0)
    return model


def save(model: LlamaForCausalLM, path: Path, vocabulary: Sequence[str] = VOCABULARY) -> None:
    """Model (fp16, half the bytes; loaded as fp32) and tokenizer as a Hugging Face folder."""
    path.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(path)
    make_tokenizer(vocabulary).save_pretrained(path)


def _width(text: str) -> int:
    width = int(text)
    if width % HEADS_OF_EVEN_SIZE or width < LEAST_WIDTH:
        raise argparse.ArgumentTypeError(
            f"{width} is no multiple of {HEADS_OF_EVEN_SIZE} from {LEAST_WIDTH} on"
        )
    return width


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=COURSES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, help="default: those of the course")
    parser.add_argument(
        "--width", type=_width, default=WIDTH, help="48, 96, 192: 0.06M, 0.23M, 0.9M"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    course = COURSES[args.name]
    print(asdict(course))
    model = teach(
        course,
        args.steps or course.steps,
        width=args.width,
        log=lambda line: print(line, flush=True),
    )
    save(model, args.out, course.vocabulary)


if __name__ == "__main__":
    main()
