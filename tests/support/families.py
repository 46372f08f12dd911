"""Tiny random models of the shapes that people have: config class, added tokens, end tokens and
chat template per family.

The templates branch as the families' own do, in words of ours; the names of the tokens are theirs.
Vocabularies are a few hundred entries: bytes for the byte-level families, characters with a
fallback to bytes for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import GenerationConfig, PreTrainedTokenizerFast

from comas.testing import tiny_model

QWEN25 = """
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {{- messages[0].content if messages[0].role == 'system' else 'Help where you can.' }}
    {%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}
    {{- '<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- else %}
    {{- '<|im_start|>system\nHelp where you can.<|im_end|>\n' }}
{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}
    {%- elif not (loop.first and m.role == 'system') %}
        {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
QWEN3 = """
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(asked=messages|length - 1) %}
{%- for m in messages[::-1] %}
    {%- if ns.asked == messages|length - 1 and m.role == 'user' and not m.content.startswith('<tool_response>') %}
        {%- set ns.asked = messages|length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {%- set said = m.content %}
        {%- set thought = '' %}
        {%- if '</think>' in said %}
            {%- set thought = said.split('</think>')[0].split('<think>')[-1].strip('\n') %}
            {%- set said = said.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > ns.asked and thought %}{{- '<think>\n' + thought + '\n</think>\n\n' }}{%- endif %}
        {{- said + '<|im_end|>\n' }}
    {%- elif not (loop.first and m.role == 'system') %}
        {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}
"""
LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now('%d %b %Y') %}
    {%- else %}
        {%- set date_string = '26 Jul 2024' %}
    {%- endif %}
{%- endif %}
{%- if messages[0].role == 'system' %}
    {%- set orders = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set orders = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\nToday is ' + date_string + '.\n\n' + orders + '<|eot_id|>' }}
{%- for m in messages %}
    {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
GEMMA3 = """{{ bos_token }}
{%- set prefix = '' %}
{%- if messages[0].role == 'system' %}
    {%- set prefix = (messages[0].content if messages[0].content is string else messages[0].content[0].text) + '\n\n' %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for m in messages %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('user and assistant must take turns') }}
    {%- endif %}
    {{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + (prefix if loop.first else '') }}
    {%- if m.content is string %}
        {{- m.content | trim }}
    {%- else %}
        {%- for part in m.content %}{{- part.text | trim }}{%- endfor %}
    {%- endif %}
    {{- '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<start_of_turn>model\n' }}
{%- endif %}
"""
PHI3 = """{% for m in messages %}{% if m.role == 'system' and m.content %}{{ '<|system|>\n' + m.content + '<|end|>\n' }}
{%- elif m.role == 'user' %}{{ '<|user|>\n' + m.content + '<|end|>\n' }}
{%- elif m.role == 'assistant' %}{{ '<|assistant|>\n' + m.content + '<|end|>\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"""
PHI4 = """{% for m in messages %}{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"""


@dataclass(frozen=True)
class Family:
    """What distinguishes one family from another."""

    model_type: str
    template: str
    specials: tuple[str, ...]
    end: str
    """Of the tokenizer."""
    ends: tuple[str, ...]
    """Of generation_config.json."""
    added: tuple[str, ...] = ()
    """Added tokens that are not special."""
    bos: str | None = None
    pad: str | None = None
    bytes: bool = True
    """Byte-level; otherwise characters with a fallback to bytes."""
    prefix: bool = False
    """A space goes before every text, and special tokens swallow the white space behind them (Llama
    2's tokenizer).
    """
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])


QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOOLS = ("<tool_call>", "</tool_call>", "<|fim_prefix|>")
QWEN_THINKS = (*TOOLS, "<tool_response>", "</tool_response>", "<think>", "</think>")
TIED = {"tie_word_embeddings": True}
FAMILIES = {
    "qwen2.5": Family(
        "qwen2", QWEN25, QWEN, QWEN[2], (QWEN[2], QWEN[0]), TOOLS, pad=QWEN[0], config=TIED
    ),
    "qwen3": Family(
        "qwen3", QWEN3, QWEN, QWEN[2], (QWEN[2], QWEN[0]), QWEN_THINKS, pad=QWEN[0], config=TIED
    ),
    "qwen3-thinking": Family(  # its template always opens the thought itself
        "qwen3",
        QWEN3.partition("    {%- if enable_thinking")[0] + "    {{- '<think>\n' }}\n{%- endif %}\n",
        QWEN,
        QWEN[2],
        (QWEN[2], QWEN[0]),
        QWEN_THINKS,
        pad=QWEN[0],
    ),
    "llama3": Family(
        "llama",
        LLAMA3,
        (
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eom_id|>",
            "<|eot_id|>",
            "<|python_tag|>",
        ),
        "<|eot_id|>",
        ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        bos="<|begin_of_text|>",
        config={
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            }
        },
    ),
    "gemma3": Family(
        "gemma3_text",
        GEMMA3,
        ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"),
        "<eos>",
        ("<eos>", "<end_of_turn>"),
        ("\n", "\n\n", "▁▁", "▁▁▁▁", "<table>", "<unused0>"),
        bos="<bos>",
        pad="<pad>",
        bytes=False,
        config={
            **TIED,
            "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 8,
        },
    ),
    "phi3": Family(
        "phi3",
        PHI3,
        ("<unk>", "<s>", "<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"),
        "<|endoftext|>",
        ("<|endoftext|>", "<|assistant|>", "<|end|>"),
        bos="<s>",
        pad="<|endoftext|>",
        bytes=False,
        prefix=True,
        config={"sliding_window": 48},
    ),
    "phi4": Family(
        "phi3",
        PHI4,
        ("<|endoftext|>", "<|im_start|>", "<|im_sep|>", "<|im_end|>", "<|dummy_85|>"),
        "<|im_end|>",
        ("<|im_end|>",),
        bos="<|endoftext|>",
        pad="<|dummy_85|>",
    ),
}


def family_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """A tokenizer with the family's added tokens and a chat template of its shape."""
    it = FAMILIES[family]
    if it.bytes:
        words = [*it.specials, *sorted(pre_tokenizers.ByteLevel.alphabet())]
        raw = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, []))
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        raw.decoder = decoders.ByteLevel()
    else:
        words = [
            *it.specials,
            *(f"<0x{i:02X}>" for i in range(256)),
            *map(chr, range(33, 127)),
            "▁",
            "▁▁",
            "▁▁▁▁",
        ]
        # Gemma lists runs of spaces as added, too
        merges = [("▁", "▁"), ("▁▁", "▁▁")]
        ids = {w: i for i, w in enumerate(words)}
        raw = Tokenizer(
            models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
        )
        spaces = [normalizers.Prepend("▁")] * it.prefix + [normalizers.Replace(" ", "▁")]
        raw.normalizer = normalizers.Sequence(spaces)  # type: ignore[assignment]
        read = [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *[decoders.Strip(" ", 1, 0)] * it.prefix,
        ]
        raw.decoder = decoders.Sequence(read)  # type: ignore[assignment]
    raw.add_special_tokens(
        [
            AddedToken(t, rstrip=it.prefix and t not in ("<s>", "<unk>"), normalized=False)
            for t in it.specials
        ]
    )
    # written by the template and added by the tokenizer as well
    if it.bos in ("<|begin_of_text|>", "<bos>"):
        ids = [(it.bos, it.specials.index(it.bos))]
        raw.post_processor = processors.TemplateProcessing(
            single=f"{it.bos} $A", special_tokens=ids
        )  # type: ignore[assignment]
    names = {
        "bos_token": it.bos,
        "eos_token": it.end,
        "pad_token": it.pad,
        "unk_token": None if it.bytes else "<unk>",
    }
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        clean_up_tokenization_spaces=False,
        **{k: v for k, v in names.items() if v is not None},
    )
    made.add_tokens([AddedToken(t, special=False, normalized=False) for t in it.added])
    made.chat_template = it.template
    return made


def family_model(folder: Path, family: str, seed: int = 0, **changes: Any) -> Path:
    """A random model of the family as a Hugging Face folder; like real ones it has more outputs
    than its tokenizer has words.
    """
    it = FAMILIES[family]
    tokenizer = family_tokenizer(family)
    size = len(tokenizer) + 5
    tiny_model(
        folder,
        seed,
        it.model_type,
        tokenizer,
        **{"vocab_size": size, "initializer_range": 0.3, **it.config, **changes},
    )
    ends = [tokenizer.convert_tokens_to_ids(t) for t in it.ends]
    GenerationConfig(
        eos_token_id=ends if len(ends) > 1 else ends[0], pad_token_id=tokenizer.pad_token_id
    ).save_pretrained(folder)
    return folder
