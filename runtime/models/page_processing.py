"""From pictures and texts to what a page-image model reads, in any thread: the family's own processor, taken apart.

A processor as a whole is not safe between threads: its tokenizer changes its padding on a call. So its image processor
(which keeps no state) makes the pixels, and a copy of its tokenizer, set once, the token ids. A page's ids depend on
its grid alone and are made once for each grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tokenizers import Tokenizer

from runtime.errors import InvalidRequest
from runtime.models.page_families import PageFamily
from runtime.models.tokenizing import Limit, copied, too_long
from runtime.models.visual_tokens import Grid, VisualRules
from runtime.pictures import decode
from runtime.work import Picture, Prepared, RowLayout

KNOWN_GRIDS = 1024
"""Grids whose token ids are kept: a few kilobytes each."""

Arrays: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPage(Prepared):
    """A text or a picture for a page-image model."""

    arrays: Arrays = field(default_factory=dict)
    """What the processor made of the item beside its ids (pixels, grids, masks), without the batch axis."""
    grid: Grid | None = None
    """Of a picture; None for a text."""

    @property
    def layout(self) -> tuple[object, ...]:
        """Items of one layout may share a forward without any padding."""
        return (self.tokens, *((name, array.shape) for name, array in sorted(self.arrays.items())), self._grid)

    @property
    def _grid(self) -> tuple[int, ...]:
        grid = self.arrays.get("image_grid_thw")
        return () if grid is None else tuple(int(side) for side in grid)


class PageProcessor:
    """One model's processor. Thread-safe."""

    def __init__(self, family: PageFamily, processor: Any, rules: VisualRules) -> None:
        self.rules = rules
        self._images = processor.image_processor
        self._image_options = dict(getattr(processor, "images_kwargs", None) or {})
        self._marks_images = family.marks_images
        self._image_id = int(processor.image_token_id)
        self._tokenizer = copied(processor.tokenizer.backend_tokenizer)
        self._page_text = _page_text(processor)
        self._image_token = str(processor.image_token)
        self._query = _Frame(self._tokenizer, processor, str(processor.query_augmentation_token) * 10)
        self._document = _Frame(self._tokenizer, processor, "")
        self.query_tokens = self._query.tokens
        self._page_ids = lru_cache(maxsize=KNOWN_GRIDS)(self._make_page_ids)

    @property
    def tokenizer(self) -> Tokenizer:
        """Never truncates. For any thread; not to be changed."""
        return self._tokenizer

    def tokens_of(self, picture: Picture) -> int:
        """What a picture will cost, exactly, without decoding it. Raises InvalidRequest as `VisualRules.grid`."""
        return len(self._page_ids(self.rules.grid(picture.width, picture.height)))

    def visual_tokens_of(self, width: int, height: int) -> int:
        """Tokens that stand for a picture of that size itself."""
        return self.rules.visual_tokens(self.rules.grid(width, height))

    def picture(self, picture: Picture) -> PreparedPage:
        """Decode and cut a picture up. Takes milliseconds and more."""
        return self.page(decode(picture))

    def page(self, image: Image.Image) -> PreparedPage:
        """What the processor makes of an RGB picture alone."""
        ids = self._page_ids(self.rules.grid(image.width, image.height))
        options = {**self._image_options, **self.rules.options(image.width, image.height)}
        made = self._images(images=[image], return_tensors="pt", **options)
        arrays = {
            name: _int32(made[name].numpy())[0]
            for name in ("pixel_values", "pixel_attention_mask", "image_grid_thw")
            if name in made
        }
        if "image_grid_thw" in arrays:
            arrays["pixel_values"] = _int32(made["pixel_values"].numpy())  # one flat row of patches, no batch axis
        grid = self.rules.grid(image.width, image.height)
        return PreparedPage(token_ids=ids, arrays={**arrays, **self._marks(ids)}, grid=grid)

    def text(self, text: str, limit: Limit, is_query: bool, index: int) -> PreparedPage:
        """A query, with the augmentation tokens that belong to its embedding, or a document without them.

        Raises InputTooLong where `limit` refuses to cut, InvalidRequest for a text that holds the image token.
        """
        frame = self._query if is_query else self._document
        ids, truncated = frame.encode(text, limit, index)
        if (ids == self._image_id).any():
            raise InvalidRequest("{input} holds the token that stands for a picture", param="input", index=index)
        if not ids.size:
            raise InvalidRequest("{input} holds no token for this model", param="input", index=index)
        return PreparedPage(token_ids=ids, truncated=truncated, arrays=self._marks(ids))

    def row_layout(self, page: PreparedPage) -> RowLayout:
        """What each row of the item's multi-vector stands for. Raises UnsupportedCapability where that is no grid."""
        if page.grid is None:
            decode_ids = self._tokenizer.decode
            return RowLayout(tokens=tuple(decode_ids([i], skip_special_tokens=False) for i in page.token_ids.tolist()))
        grid = self.rules.patch_grid(page.grid)
        return RowLayout(grid=(grid.rows, grid.columns), patches=np.flatnonzero(page.token_ids == self._image_id))

    def _make_page_ids(self, grid: Grid) -> NDArray[np.int32]:
        text = self._page_text.replace(self._image_token, self.rules.replacement(grid))
        return np.array(self._tokenizer.encode(text).ids, dtype=np.int32)

    def _marks(self, ids: NDArray[np.int32]) -> Arrays:
        return {"mm_token_type_ids": (ids == self._image_id).astype(np.int32)} if self._marks_images else {}


class _Frame:
    """What stands around a text, and how a text that is too long is cut inside it."""

    def __init__(self, tokenizer: Tokenizer, processor: Any, suffix: str) -> None:
        self._tokenizer = tokenizer
        # ColPali's own `process_texts` writes the start token; the others' tokenizers do what is to be done.
        start = processor.tokenizer.bos_token if hasattr(processor, "image_seq_length") else ""
        self._before = f"{start}{processor.query_prefix if suffix else ''}"
        self._after = suffix
        lead, trail = _specials(tokenizer)
        self._head = lead + len(tokenizer.encode(self._before, add_special_tokens=False))
        self._tail = trail + len(tokenizer.encode(self._after, add_special_tokens=False))

    @property
    def tokens(self) -> int:
        """Tokens around a text."""
        return self._head + self._tail

    def encode(self, text: str, limit: Limit, index: int) -> tuple[NDArray[np.int32], bool]:
        """Ids and whether the text was cut; see TextTokenizer for why a window of characters will do."""
        size = limit.window_chars
        while True:
            window = text[:size] if limit.side == "right" else text[-size:]
            ids = self._tokenizer.encode(f"{self._before}{window}{self._after}").ids
            if size >= len(text) or len(ids) >= limit.window_tokens:
                break
            size *= 2
        if len(ids) <= limit.max_tokens:
            return np.array(ids, dtype=np.int32), False
        if not limit.truncate:
            raise too_long(index, len(ids), size < len(text), limit.max_tokens)
        inner, tail = ids[self._head : len(ids) - self._tail], ids[len(ids) - self._tail :]
        room = max(limit.max_tokens - self._head - self._tail, 0)
        kept = inner[:room] if limit.side == "right" else inner[len(inner) - room :]
        return np.array([*ids[: self._head], *kept, *tail], dtype=np.int32), True


def _page_text(processor: Any) -> str:
    """The text around a picture, its image token not replaced yet, as the processor lays it out."""
    blank = Image.new("RGB", (32, 32))
    layout = processor.prepare_inputs_layout(images=[blank], text=[processor.visual_prompt_prefix])
    return str(layout[1][0])


def _specials(tokenizer: Tokenizer) -> tuple[int, int]:
    """How many tokens the tokenizer itself puts before and after a text."""
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    framed = tokenizer.encode("a").ids
    lead = next(i for i in range(len(framed)) if framed[i : i + len(plain)] == plain)
    return lead, len(framed) - lead - len(plain)


def _int32(array: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers as the device takes them; pixels as they are, float32."""
    return array.astype(np.int32) if array.dtype.kind in "iub" else array.astype(np.float32, copy=False)
