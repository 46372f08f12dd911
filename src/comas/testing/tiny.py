"""Tiny random models of the families that transformers knows, for tests.

Leaves out: models that can do anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3_text", "phi3")
"""Shapes that `tiny_model` makes: any `model_type` of transformers whose config has the usual
names.
"""


def tiny_model(
    folder: Path, seed: int = 0, family: str = "llama", tokenizer: Any = None, **changes: Any
) -> Path:
    """A random model of a few thousand parameters, as a Hugging Face folder; `changes` are keys of
    its config.

    Its tokenizer is byte-level with a chat template, unless it is given.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = _tiny_tokenizer() if tokenizer is None else tokenizer
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        family,
        **{
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": False,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            **changes,
        },
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tiny_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"]
    raw = Tokenizer(models.BPE({t: i for i, t in enumerate([*specials, *alphabet])}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token=specials[0],
        eos_token=specials[3],
        additional_special_tokens=specials[1:3],
    )
    tokenizer.chat_template = (
        "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    return tokenizer
