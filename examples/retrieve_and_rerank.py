"""Retrieve, then rerank: which installed Python package does what you describe?

    scripts/serve &
    python examples/retrieve_and_rerank.py "progress bar for loops in the terminal"

The corpus is real and at hand: the summaries of the packages in this Python's environment. The embedder finds ten
candidates by the cosine of vectors, the reranker reads each beside the query and orders them. Standard library only.
"""

import argparse
import json
import urllib.error
import urllib.request
from importlib.metadata import distributions

EMBEDDER = "all-minilm-l6-v2"
RERANKER = "demo/package-reranker"
CANDIDATES = 10
QUERIES = ("progress bar for loops in the terminal", "validate data with type hints")


def main() -> None:
    """Print the best titles for each query, before and after reranking."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("queries", nargs="*", default=QUERIES)
    parser.add_argument("--url", default="http://127.0.0.1:7997")
    options = parser.parse_args()
    corpus = installed_packages()
    titles, texts = list(corpus), list(corpus.values())
    vectors = embed(options.url, texts)
    for query in options.queries:
        found = nearest(embed(options.url, [query])[0], vectors)
        ranked = rerank(options.url, query, [texts[index] for index in found])
        print(f"{query}\n  retrieved: {', '.join(titles[index] for index in found)}")
        for place, score in ranked[:3]:
            print(f"  {score:.3f}  {titles[found[place]]}: {texts[found[place]]}")


def installed_packages() -> dict[str, str]:
    """Name and summary of every installed package that has one."""
    about = {package.metadata["Name"]: package.metadata["Summary"] for package in distributions()}
    return {name: summary for name, summary in sorted(about.items()) if name and summary}


def embed(url: str, texts: list[str]) -> list[list[float]]:
    """Unit vectors, in order."""
    answer = post(f"{url}/v1/embeddings", {"model": EMBEDDER, "input": texts})
    return [item["embedding"] for item in answer["data"]]


def nearest(query: list[float], vectors: list[list[float]]) -> list[int]:
    """Places of the vectors with the largest cosine."""
    cosines = [sum(a * b for a, b in zip(query, vector, strict=True)) for vector in vectors]
    return sorted(range(len(vectors)), key=lambda index: -cosines[index])[:CANDIDATES]


def rerank(url: str, query: str, documents: list[str]) -> list[tuple[int, float]]:
    """Places among the documents with their scores, the best first."""
    answer = post(f"{url}/v1/rerank", {"model": RERANKER, "query": query, "documents": documents})
    return [(result["index"], result["relevance_score"]) for result in answer["results"]]


def post(url: str, body: dict[str, object]) -> dict[str, list[dict[str, float]]]:
    """The answer's JSON; ends the program with one line where there is no server, or it refuses."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            content: dict[str, list[dict[str, float]]] = json.load(answer)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"the server refuses: {json.load(error)['error']['message']}") from None
    except urllib.error.URLError:
        raise SystemExit(f"no server answers at {url}: start one with ./scripts/serve") from None
    return content


if __name__ == "__main__":
    main()
