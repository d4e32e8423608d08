"""The head of a classifier or a language model, run on hidden states that are already there.

transformers' classes run backbone and head in one call on a padded rectangle. Here the backbone has run on a flat row;
of each sequence only the position that the head reads is left, `(items, 1, hidden)`, and the class's own head computes
the logits from that.
"""

from __future__ import annotations

import copy
import enum
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sentence_transformers import CrossEncoder
from transformers import PreTrainedModel
from transformers.modeling_layers import GenericForSequenceClassification
from transformers.utils.generic import ModelOutput

from runtime.devices.base import LayerSwap
from runtime.models.first_tokens import FirstTokensOnly, first_tokens, module_after_attention
from runtime.work import Activation, Head

Features = dict[str, torch.Tensor]

BACKBONE_INPUTS = frozenset({"input_ids", "position_ids", "token_type_ids", "attention_mask"})


class Reading(enum.Enum):
    """Which hidden state of a sequence a head reads."""

    FIRST = "first token"
    MEAN = "mean"
    LAST = "last token"
    LAST_NOT_PADDING = "last token that is not the padding token"
    """transformers' rule for decoders with a score head, whatever token a text may end in."""


@dataclass
class BackboneOutput(ModelOutput):
    """What heads look for in a backbone's answer."""

    last_hidden_state: torch.Tensor | None = None
    pooler_output: torch.Tensor | None = None
    hidden_states: torch.Tensor | None = None
    attentions: torch.Tensor | None = None
    cache: object | None = None


class HiddenStates(torch.nn.Module):
    """Stands in for a backbone: answers with the `inputs_embeds` that it is given."""

    def __init__(self, backbone: torch.nn.Module) -> None:
        super().__init__()
        self.pooler = getattr(backbone, "pooler", None)
        self.pooler_activation = getattr(backbone, "pooler_activation", None)

    def forward(self, *_: object, inputs_embeds: torch.Tensor, **__: object) -> BackboneOutput:
        """`inputs_embeds`: `(items, 1, hidden)`."""
        return BackboneOutput(last_hidden_state=inputs_embeds, pooler_output=self._pooled(inputs_embeds))

    def _pooled(self, states: torch.Tensor) -> torch.Tensor | None:
        if self.pooler is None:
            return None
        pooled: torch.Tensor = self.pooler(states[:, 0] if isinstance(self.pooler, torch.nn.Linear) else states)
        if self.pooler_activation is not None:  # ALBERT's pooler has its two parts apart
            pooled = self.pooler_activation(pooled)
        return pooled


class NetworkHead:
    """Backbone and head of `network`, to be run one after the other. The network itself stays as it is."""

    def __init__(self, network: PreTrainedModel, generates: bool) -> None:
        """`generates`: it is a language model, whose logits are over its vocabulary."""
        self._backbone: Any = getattr(network, network.base_model_prefix)
        self._inputs = BACKBONE_INPUTS & inspect.signature(self._backbone.forward).parameters.keys()
        self.reading = reading_of(network, generates)
        self._padding_id = network.config.get_text_config().pad_token_id
        after_attention = module_after_attention(self._backbone) if self.reading is Reading.FIRST else None
        self._last_layer = FirstTokensOnly(after_attention) if after_attention is not None else None
        self._head: Any = copy.copy(network)
        # Only one position is left to look at, so padding is no question; without an id some classes refuse batches.
        self._head.config = copy.deepcopy(network.config)
        self._head.config.get_text_config().pad_token_id = 0
        modules = dict(network._modules)
        modules[network.base_model_prefix] = HiddenStates(self._backbone)
        self._head.__dict__["_modules"] = modules

    @property
    def reads_last(self) -> bool:
        """Whether the score is read at the end of a sequence, where a padded batch must not look."""
        return self.reading in (Reading.LAST, Reading.LAST_NOT_PADDING)

    @property
    def swaps(self) -> Sequence[LayerSwap]:
        """What may be tried to spare the backbone states that the head doesn't read."""
        return () if self._last_layer is None else (self._last_layer,)

    def run(self, features: Features) -> torch.Tensor:
        """Logits `(items, labels)`, or `(items, 1, vocabulary)` of a language model.

        `features`: a flat row (it has `cu_seq_lens_q` and `seq_idx`), or a rectangle padded on the right.
        """
        inputs = {name: tensor for name, tensor in features.items() if name in self._inputs}
        states = self._backbone(**inputs).last_hidden_state
        read = (
            self._read_row(states[0], features) if "cu_seq_lens_q" in features else self._read_block(states, features)
        )
        return self._logits(read)

    def _logits(self, states: torch.Tensor) -> torch.Tensor:
        ones = states.new_ones(states.shape[:2], dtype=torch.long)
        # The ids are looked at for padding only.
        logits: torch.Tensor = self._head(input_ids=ones, attention_mask=ones, inputs_embeds=states).logits
        return logits

    def _read_row(self, states: torch.Tensor, features: Features) -> torch.Tensor:
        """The states that the head reads, `(items, 1, hidden)`, of a flat row's `(tokens, hidden)`.

        Boundaries may repeat at the end of the row (unused slots of a captured graph); their rows mean nothing.
        """
        boundaries = features["cu_seq_lens_q"].long()
        if self.reading is Reading.MEAN:
            return self._means(states, features["seq_idx"][0].long(), boundaries)
        if self._last_layer is not None and self._last_layer.applied:
            return states.unsqueeze(1)
        places = boundaries[1:] - 1
        if self.reading is Reading.FIRST:
            places = first_tokens(boundaries, states.shape[0])
        elif self._padding_id is not None and self.reading is Reading.LAST_NOT_PADDING:
            ids = features["input_ids"][0]
            every = torch.arange(ids.shape[0], device=ids.device)
            candidates = torch.where(ids != self._padding_id, every, torch.zeros_like(every))
            firsts = boundaries[:-1].clamp(max=states.shape[0] - 1)
            places = firsts.scatter_reduce(0, features["seq_idx"][0].long(), candidates, "amax")
        return states.index_select(0, places).unsqueeze(1)

    def _read_block(self, states: torch.Tensor, features: Features) -> torch.Tensor:
        """The last states, `(items, 1, hidden)`, of a rectangle `(items, tokens, hidden)` padded on the right."""
        real = features["attention_mask"].bool()
        if self._padding_id is not None and self.reading is Reading.LAST_NOT_PADDING:
            real = real & (features["input_ids"] != self._padding_id)
        every = torch.arange(real.shape[1], device=real.device)
        places = (every * real).argmax(dim=1)
        return states[torch.arange(states.shape[0], device=states.device), places].unsqueeze(1)

    def _means(self, states: torch.Tensor, sequence_ids: torch.Tensor, boundaries: torch.Tensor) -> torch.Tensor:
        lengths = boundaries[1:] - boundaries[:-1]
        # Summed in fp32: half precision would lose the tail of a long document.
        sums = states.new_zeros((lengths.shape[0], states.shape[1]), dtype=torch.float32)
        sums = sums.index_add(0, sequence_ids, states.float())
        return (sums / lengths.unsqueeze(1)).to(states.dtype).unsqueeze(1)


def reading_of(network: PreTrainedModel, generates: bool) -> Reading:
    """What the head of `network` most likely reads; the load-time check finds out whether it does."""
    if generates:
        return Reading.LAST
    if isinstance(network, GenericForSequenceClassification):
        return Reading.LAST_NOT_PADDING
    return Reading.MEAN if getattr(network.config, "classifier_pooling", None) == "mean" else Reading.FIRST


def head_of(reference: CrossEncoder) -> Head:
    """The names of a model's logits, and its own activation."""
    count = reference.num_labels
    config = reference.config
    names = {int(place): str(name) for place, name in (getattr(config, "id2label", None) or {}).items()}
    if sorted(names) != list(range(count)):
        names = {place: f"LABEL_{place}" for place in range(count)}
    return Head(labels=tuple(names[place] for place in range(count)), activation=_activation(reference, count))


def _activation(reference: CrossEncoder, labels: int) -> Activation:
    """Several labels: sentence-transformers leaves them as they are, so what the classifier was trained with counts."""
    own = reference.activation_fn
    if isinstance(own, torch.nn.Sigmoid):
        return "sigmoid"
    if labels == 1:
        return "identity"
    problem = getattr(reference.config, "problem_type", None)
    if problem == "regression":
        return "identity"
    return "sigmoid" if problem == "multi_label_classification" else "softmax"
