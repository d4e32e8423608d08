"""The training: LoRA on every linear layer of the encoder, pooler and head whole, softmax over a query's documents."""

import json
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    AutoTokenizer,
    BatchEncoding,
    BertForSequenceClassification,
    PreTrainedTokenizerBase,
    get_linear_schedule_with_warmup,
)

from scripts.demo_reranker.candidates import GROUP_SIZE

WEIGHTS = "adapter_model.safetensors"
REPORT_STEPS = 10
CHUNK = 8
"""Pairs in one forward."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of a training run."""

    seed: int = 0
    steps: int = 400
    queries_per_step: int = 8
    max_tokens: int = 64
    learning_rate: float = 1e-3
    warmup_share: float = 0.05
    rank: int = 16
    alpha: int = 32


class CrossEncoder:
    """A BERT that reads query and document together and gives one logit."""

    def __init__(self, network: torch.nn.Module, tokenizer: PreTrainedTokenizerBase) -> None:
        self.network = network
        self._tokenizer = tokenizer

    @classmethod
    def untrained(cls, base: Path, recipe: Recipe) -> "CrossEncoder":
        """The base model with a fresh head, and adapters that change nothing yet."""
        torch.manual_seed(recipe.seed)
        adapter = LoraConfig(
            task_type="SEQ_CLS",
            r=recipe.rank,
            lora_alpha=recipe.alpha,
            lora_dropout=0.0,
            target_modules=["query", "key", "value", "dense"],
            exclude_modules=["pooler.dense"],
            modules_to_save=["pooler"],  # peft adds the classifier itself
        )
        return cls(get_peft_model(_network(base), adapter), _tokenizer(base))

    @classmethod
    def saved(cls, base: Path, adapter: Path) -> "CrossEncoder":
        """The base model with a saved adapter merged into it, as a server would load it."""
        merged = PeftModel.from_pretrained(_network(base), str(adapter)).merge_and_unload()
        return cls(merged.eval(), _tokenizer(base))

    def logits(self, queries: Sequence[str], documents: Sequence[str], max_tokens: int) -> torch.Tensor:
        """One logit a pair: (pairs,). The longer of the two texts is cut first."""
        return self.score(self.read(queries, documents, max_tokens))

    def read(self, queries: Sequence[str], documents: Sequence[str], max_tokens: int) -> BatchEncoding:
        """The token ids of the pairs. One thread at a time: the tokenizer has state."""
        read: BatchEncoding = self._tokenizer(
            list(queries), list(documents), truncation="longest_first", max_length=max_tokens
        )
        return read

    def score(self, read: BatchEncoding) -> torch.Tensor:
        """One logit a pair: (pairs,)."""
        lengths = [len(ids) for ids in read["input_ids"]]
        # Pairs of similar length run together, so that little is padded.
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        logits = torch.cat([self._run(read, order[at : at + CHUNK]) for at in range(0, len(order), CHUNK)])
        return logits[torch.tensor(order).argsort()]

    def _run(self, read: BatchEncoding, pairs: Sequence[int]) -> torch.Tensor:
        chosen = {name: [rows[pair] for pair in pairs] for name, rows in read.items()}
        logits: torch.Tensor = self.network(**self._tokenizer.pad(chosen, return_tensors="pt")).logits
        return logits[:, 0]


def _network(base: Path) -> BertForSequenceClassification:
    # Without dropout: a small adapter and one pass over the data don't overfit.
    return BertForSequenceClassification.from_pretrained(
        base, num_labels=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )


def _tokenizer(base: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(base)


def train(
    model: CrossEncoder, queries: Sequence[str], groups: Sequence[Sequence[str]], recipe: Recipe, threads: int = 1
) -> float:
    """Train in place, and return the minutes that it took. The first document of each group is the right one.

    Each thread computes its share of a step's queries alone. Threads that share every product would wait for each
    other some hundred times a step, which is long where other programs want the cores.
    """
    started = time.monotonic()
    threads = min(threads, recipe.queries_per_step)
    weights = [weight for weight in model.network.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, round(recipe.warmup_share * recipe.steps), recipe.steps)

    def share(read: BatchEncoding) -> tuple[float, tuple[torch.Tensor, ...]]:
        logits = model.score(read).view(-1, GROUP_SIZE)
        right = torch.zeros(len(logits), dtype=torch.long)
        loss = torch.nn.functional.cross_entropy(logits, right, reduction="sum") / recipe.queries_per_step
        return loss.item(), torch.autograd.grad(loss, weights)

    loss_sum = 0.0
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for step, chosen in enumerate(_batches(len(queries), recipe), start=1):
            reads = [_read(model, queries, groups, chosen[at::threads], recipe) for at in range(threads)]
            losses, gradients = zip(*pool.map(share, reads), strict=True)
            for weight, *parts in zip(weights, *gradients, strict=True):
                weight.grad = torch.stack(parts).sum(dim=0)
            optimizer.step()
            schedule.step()
            loss_sum += sum(losses)
            if step % REPORT_STEPS == 0:
                minutes = (time.monotonic() - started) / 60
                print(f"step {step}: loss {loss_sum / REPORT_STEPS:.3f}, {minutes:.1f} minutes", flush=True)
                loss_sum = 0.0
    return (time.monotonic() - started) / 60


def _read(
    model: CrossEncoder, queries: Sequence[str], groups: Sequence[Sequence[str]], chosen: Sequence[int], recipe: Recipe
) -> BatchEncoding:
    asked = [queries[each] for each in chosen for _ in range(GROUP_SIZE)]
    return model.read(asked, [document for each in chosen for document in groups[each]], recipe.max_tokens)


def _batches(queries: int, recipe: Recipe) -> Iterator[list[int]]:
    """Positions of the queries of each step: a new order each time all have been seen."""
    order: list[int] = []
    shuffling = torch.Generator().manual_seed(recipe.seed)
    for _ in range(recipe.steps):
        if len(order) < recipe.queries_per_step:
            order += torch.randperm(queries, generator=shuffling).tolist()
        yield order[: recipe.queries_per_step]
        del order[: recipe.queries_per_step]


def save(model: CrossEncoder, folder: Path, base_source: str) -> None:
    """Write the adapter in fp16. `base_source` is where a server finds the base, on any machine."""
    if not isinstance(model.network, PeftModel):
        raise TypeError("only a model with an adapter can be saved")
    adapter = model.network.peft_config["default"]
    adapter.base_model_name_or_path = base_source
    adapter.inference_mode = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the base can't be looked up by this name
        model.network.save_pretrained(str(folder))
    _sort_lists(folder / "adapter_config.json")
    weights = {name: weight.half().contiguous() for name, weight in load_file(folder / WEIGHTS).items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)  # safetensors leaves it readable by its owner alone


def _sort_lists(path: Path) -> None:
    """Rewrite a file of JSON so that lists that were sets look the same after each run."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    ordered = {key: sorted(value) if isinstance(value, list) else value for key, value in settings.items()}
    path.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")
