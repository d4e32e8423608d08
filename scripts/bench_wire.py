"""CPU milliseconds from one page's multi-vector (1030 x 128 float32) to its answer's bytes, by encoding."""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from runtime.api.embeddings import rendered
from runtime.api.openai import EMBEDDINGS
from runtime.api.problems import Answer
from runtime.api.schemas import EmbeddingRequest
from runtime.work import Result, Timings

WAYS: dict[str, dict[str, str]] = {
    "float": {},
    "base64": {"encoding_format": "base64"},
    "base64, float16": {"encoding_format": "base64", "embed_dtype": "float16"},
    "base64, int8": {"encoding_format": "base64", "output_dtype": "int8"},
    "base64, binary": {"encoding_format": "base64", "output_dtype": "binary"},
    "bytes": {"encoding_format": "bytes"},
}


def main() -> None:
    """Prints a line for each encoding: bytes, and the median of process CPU time."""
    parser = argparse.ArgumentParser(prog="scripts/bench_wire", description=__doc__)
    parser.add_argument("--tokens", type=int, default=1030)
    parser.add_argument("--dimensions", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=200)
    options = parser.parse_args()
    rows = np.random.default_rng(0).normal(size=(options.tokens, options.dimensions)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    result = Result(model="m", rows=[rows], tokens=options.tokens, truncated_inputs=0, timings=Timings())
    for name, fields in WAYS.items():
        request = EmbeddingRequest.model_validate({"input": "page", **fields})
        spent_ms = []
        for _ in range(options.repeats):
            started = time.process_time()
            answer = rendered(result, request, "m", EMBEDDINGS)
            spent_ms.append((time.process_time() - started) * 1000)
        body = answer.body if isinstance(answer, Answer) else answer
        print(f"{name:16} {len(body):>9,} bytes {statistics.median(spent_ms):7.2f} ms")


if __name__ == "__main__":
    main()
