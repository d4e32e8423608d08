"""Rank a few texts by their nearness to a question, with OpenAI's own SDK against a running server.

Start one with `./scripts/serve`, then run this with the project's environment:

    "$(scripts/setup | tail -n 1)/bin/python" examples/embed_with_openai.py "how do I get back into my account?"
"""

import argparse

import numpy as np
from openai import APIConnectionError, APIStatusError, OpenAI

TEXTS = (
    "Reset your password from the sign-in page: choose 'Forgot password' and follow the link in the mail.",
    "Invoices are sent on the first working day of each month.",
    "Two-factor codes come from an app; ten backup codes let you in if you lose the phone.",
    "Let the dough rest for an hour, then bake the bread at 230 degrees.",
)


def main() -> None:
    """Embed the question and the texts in one request, then print the texts, nearest first."""
    parser = argparse.ArgumentParser(description="Rank a few texts by their nearness to a question.")
    parser.add_argument("question", nargs="?", default="I forgot my password. How do I sign in?")
    parser.add_argument("--url", default="http://127.0.0.1:7997/v1", help="default: %(default)s")
    parser.add_argument("--model", default="all-minilm-l6-v2", help="default: %(default)s")
    options = parser.parse_args()

    # The SDK insists on a key; the server does not look at it. Vectors come as base64, which the SDK asks for itself.
    client = OpenAI(base_url=options.url, api_key="unused")
    try:
        answer = client.embeddings.create(model=options.model, input=[options.question, *TEXTS])
    except APIConnectionError:
        raise SystemExit(f"no server answers at {options.url}: start one with ./scripts/serve") from None
    except APIStatusError as error:
        raise SystemExit(f"the server refuses: {error.message}") from None
    vectors = np.array([item.embedding for item in answer.data], dtype=np.float32)
    # Not every model's vectors have length 1: only then would the bare dot product be the cosine.
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    similarities = vectors[1:] @ vectors[0]

    print(f"{answer.model}: {len(vectors)} vectors of {vectors.shape[1]} numbers, {answer.usage.prompt_tokens} tokens")
    for place in np.argsort(-similarities):
        print(f"{similarities[place]:6.3f}  {TEXTS[place]}")


if __name__ == "__main__":
    main()
