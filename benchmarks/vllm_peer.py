"""vLLM's seconds for the requests of `mixed.py`, in an environment of its own: `vllm_peer.py
REQUESTS.json MODEL_FOLDER`.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path


def main(requests: str, folder: str) -> None:
    told = json.loads(Path(requests).read_text())
    os.environ |= {  # one process, so that its clock counts everything
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(told["threads"]),
        "HF_HUB_OFFLINE": "1",
    }
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    clock = time.process_time if told["threads"] == 1 else time.perf_counter
    engine = LLM(
        folder,
        dtype=told["dtype"],
        max_model_len=512,
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_num_seqs=256,
    )
    seconds: dict[int, float] = {}
    for count in told["batches"]:
        prompts = [{"prompt_token_ids": ids} for ids in told["prompts"][:count]]
        params = [
            SamplingParams(
                max_tokens=n, min_tokens=n, ignore_eos=True, detokenize=False, temperature=1.0
            )
            # no seeds: per request they fail on a CPU where a prompt is read in parts
            for n in told["limits"][:count]
        ]
        taken = []
        for _ in range(told["repeats"] + 1):
            engine.reset_prefix_cache()
            began = clock()
            done = engine.generate(prompts, params, use_tqdm=False)
            taken.append(clock() - began)
            assert sum(len(d.outputs[0].token_ids) for d in done) == sum(told["limits"][:count])
        seconds[count] = statistics.median(taken[1:])
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
