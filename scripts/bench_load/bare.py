"""The same forward without any server: what the machine gives at best. Each run is a process of its own."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from scripts.bench_load.corpus import Corpus, load_corpus
from scripts.bench_load.figures import quantile

# Texts in; the vectors are dropped.
Encode = Callable[[list[str]], None]

# Sorted slices of this many texts are timed one by one, so that a run can end near its time.
SLICE_TEXTS = 256
WARMUP_QUERIES = 20


def sentence_transformers_encode(model_folder: Path) -> Encode:
    """`SentenceTransformer.encode` with its default batch size of 32, on the CPU in fp32."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(model_folder), device="cpu")

    def encode(texts: list[str]) -> None:
        model.encode(texts, show_progress_bar=False)

    return encode


def packed_encode(model_folder: Path) -> Encode:
    """Our packed forward in a bare loop: tokenize, cut into batches of the CPU's budget, one lane a core."""
    from runtime.devices.process import prepare_process

    prepare_process()
    from concurrent.futures import ThreadPoolExecutor

    from runtime.devices.cpu import CpuDevice
    from runtime.models.loading import load_model
    from runtime.registry import ModelSpec
    from runtime.work import Job, Prepared, Task

    device = CpuDevice()
    model = load_model(ModelSpec(id="bare", source=str(model_folder)), Task.EMBED, model_folder, device)
    lanes = ThreadPoolExecutor(device.concurrency.lanes)

    def run(batch: list[Prepared], alone: bool) -> None:
        with device.working(alone):
            model.launch(batch).land()

    def encode(texts: list[str]) -> None:
        items = model.prepare(Job(id="bare", model="bare", task=Task.EMBED, inputs=texts))
        batches: list[list[Prepared]] = [[]]
        for item in items:
            if sum(each.tokens for each in batches[-1]) + item.tokens > device.default_batch_tokens:
                batches.append([])
            batches[-1].append(item)
        list(lanes.map(run, batches, [len(batches) == 1] * len(batches)))

    return encode


# By name, in the order of the report's columns.
FORWARDS: dict[str, Callable[[Path], Encode]] = {
    "sentence-transformers": sentence_transformers_encode,
    "packed": packed_encode,
}


def bare_rates(forward: str, model_folder: Path, seconds: float) -> dict[str, dict[str, float]]:
    """Figures by workload: texts per second over the length-sorted corpus, and a lone query's latency.

    Blocks for the load of the model and twice `seconds`.
    """
    corpus = load_corpus()
    encode = FORWARDS[forward](model_folder)
    for query in corpus.queries[:WARMUP_QUERIES]:
        encode([query])
    return {"index": _index_rate(encode, corpus, seconds), "query-1": _query_latency(encode, corpus, seconds)}


def _index_rate(encode: Encode, corpus: Corpus, seconds: float) -> dict[str, float]:
    """Over slices of the sorted corpus; of every n-th text, so that each has the corpus's mix of lengths."""
    ordered = sorted(corpus.texts, key=len, reverse=True)
    count = len(ordered) // SLICE_TEXTS
    slices = [ordered[start::count] for start in range(count)]
    encode(slices[-1])
    texts, begin_s = 0, time.perf_counter()
    while (elapsed_s := time.perf_counter() - begin_s) < seconds:
        chosen = slices[texts // SLICE_TEXTS % count]
        encode(chosen)
        texts += len(chosen)
    return {"texts_per_s": texts / elapsed_s}


def _query_latency(encode: Encode, corpus: Corpus, seconds: float) -> dict[str, float]:
    latencies_ms: list[float] = []
    end_s = time.perf_counter() + seconds
    while (begin_s := time.perf_counter()) < end_s:
        encode([corpus.queries[len(latencies_ms) % len(corpus.queries)]])
        latencies_ms.append((time.perf_counter() - begin_s) * 1e3)
    return {
        "queries_per_s": 1e3 * len(latencies_ms) / sum(latencies_ms),
        "p50_ms": quantile(latencies_ms, 0.50),
        "p95_ms": quantile(latencies_ms, 0.95),
        "p99_ms": quantile(latencies_ms, 0.99),
    }


def main() -> None:
    """Arguments: a name in FORWARDS, the model's folder, seconds. Prints one line of JSON."""
    forward, model_folder, seconds = sys.argv[1:]
    print(json.dumps(bare_rates(forward, Path(model_folder), float(seconds))))


if __name__ == "__main__":
    main()
