"""How many tokens a picture becomes, from its width and height alone: each family's own rules, before any decoding.

A grid is what the rules make of a size: pages of one grid have the same tokens and may share a forward.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

from runtime.errors import InvalidRequest, UnsupportedCapability, UnsupportedModel

MOST_TILED_PIXELS = 4096
"""Idefics3's processor scales no edge beyond this before it cuts tiles."""


class Grid(NamedTuple):
    """Rows and columns of whatever the family counts; zeros where it doesn't divide the picture."""

    rows: int
    columns: int


ImageOptions: TypeAlias = Mapping[str, Any]


class VisualRules(abc.ABC):
    """One processor's rules. Thread-safe."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    @abc.abstractmethod
    def grid(self, width: int, height: int) -> Grid:
        """The grid of a picture of that size in pixels. Raises InvalidRequest for a shape the family can't see."""

    @abc.abstractmethod
    def visual_tokens(self, grid: Grid) -> int:
        """Tokens that stand for the picture itself."""

    @abc.abstractmethod
    def replacement(self, grid: Grid) -> str:
        """The text that the processor puts in the place of its image token."""

    def patch_grid(self, grid: Grid) -> Grid:
        """Rows and columns in which the picture's tokens lie on it, line by line. Raises UnsupportedCapability."""
        raise UnsupportedCapability("this model sees a page as tiles and once more whole: its rows are no one grid")

    def options(self, width: int, height: int) -> ImageOptions:
        """What the image processor must be told for a picture of that size, beside its own settings."""
        return {}

    @contextmanager
    def applied(self, width: int, height: int) -> Iterator[None]:
        """The processor itself set to `options`, for the reference at load. Not thread-safe."""
        images = self._processor.image_processor
        before = {name: getattr(images, name) for name in self.options(width, height)}
        try:
            for name, value in self.options(width, height).items():
                setattr(images, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(images, name, value)


class FixedRules(VisualRules):
    """ColPali: every picture is scaled to one square."""

    def __init__(self, processor: Any, max_visual_tokens: int | None) -> None:
        """Raises UnsupportedModel when the cap is below the one number there is."""
        super().__init__(processor)
        self._tokens = int(processor.image_seq_length)
        if max_visual_tokens is not None and max_visual_tokens < self._tokens:
            raise UnsupportedModel(
                f"max_num_visual_tokens: {max_visual_tokens} can't be kept:"
                f" every picture is {self._tokens} tokens to this model"
            )

    def grid(self, width: int, height: int) -> Grid:
        return Grid(0, 0)

    def visual_tokens(self, grid: Grid) -> int:
        return self._tokens

    def replacement(self, grid: Grid) -> str:
        return str(self._processor.image_token) * self._tokens

    def patch_grid(self, grid: Grid) -> Grid:
        side = math.isqrt(self._tokens)
        if side * side != self._tokens:
            raise UnsupportedCapability(f"this model's {self._tokens} patches fill no square")
        return Grid(side, side)


class PatchRules(VisualRules):
    """The Qwen family: a token for each square of merged patches, within a range of pixels.

    A picture of too many pixels is scaled down until it fits.
    """

    def __init__(self, processor: Any, max_visual_tokens: int | None) -> None:
        super().__init__(processor)
        images = processor.image_processor
        self._factor = int(images.patch_size * images.merge_size)
        self._least, self._most = int(images.size["shortest_edge"]), int(images.size["longest_edge"])
        self._cap = max_visual_tokens

    def grid(self, width: int, height: int) -> Grid:
        return self._grid(width, height, *self._pixels(width, height))

    def visual_tokens(self, grid: Grid) -> int:
        return grid.rows * grid.columns

    def replacement(self, grid: Grid) -> str:
        return str(self._processor.image_token) * self.visual_tokens(grid)

    def patch_grid(self, grid: Grid) -> Grid:
        return grid

    def options(self, width: int, height: int) -> ImageOptions:
        least, most = self._pixels(width, height)
        if (least, most) == (self._least, self._most):
            return {}
        # Numbers of pixels, whatever their names say.
        return {"size": {"shortest_edge": least, "longest_edge": most}}

    def _pixels(self, width: int, height: int) -> tuple[int, int]:
        """The fewest and the most pixels that a picture may be scaled to.

        The library's rule lets a very narrow picture exceed the most, as no side goes below one token. The cap holds
        for those as well, so that the most is lowered until they keep it.
        """
        square = self._factor**2
        if self._cap is None:
            return self._least, self._most
        most = min(self._most, self._cap * square)
        while most > square:
            tokens = self.visual_tokens(self._grid(width, height, min(self._least, most), most))
            if tokens <= self._cap:
                break
            most = min(most * self._cap // tokens, most - square)
        most = max(most, square)
        return min(self._least, most), most

    def _grid(self, width: int, height: int, least: int, most: int) -> Grid:
        try:
            rows, columns = smart_resize(height, width, self._factor, least, most)
        except ValueError as error:
            raise InvalidRequest(
                "this model sees no picture whose sides differ more than 200 times", param="input"
            ) from error
        return Grid(rows // self._factor, columns // self._factor)


class TileRules(VisualRules):
    """Idefics3 and ModernVBERT: square tiles of equal cost, and the whole picture as one more.

    Above the cap a picture is scaled to fewer tiles on its longer side; the least is the whole picture alone.
    """

    def __init__(self, processor: Any, max_visual_tokens: int | None) -> None:
        """Raises UnsupportedModel when the cap is below one tile."""
        super().__init__(processor)
        images = processor.image_processor
        self._tile = int(images.max_image_size["longest_edge"])
        self._longest = int(images.size["longest_edge"])
        self._splits = bool(images.do_image_splitting)
        self._tile_tokens = int(processor.image_seq_len)
        self._cap = max_visual_tokens
        if max_visual_tokens is not None and max_visual_tokens < self._tile_tokens:
            raise UnsupportedModel(
                f"max_num_visual_tokens: {max_visual_tokens} can't be kept:"
                f" a tile alone is {self._tile_tokens} tokens to this model"
            )

    def grid(self, width: int, height: int) -> Grid:
        return tile_grid(width, height, self._longest_edge(width, height), self._tile) if self._splits else Grid(0, 0)

    def visual_tokens(self, grid: Grid) -> int:
        return self._tile_tokens * (grid.rows * grid.columns + 1)

    def replacement(self, grid: Grid) -> str:
        text = self._processor.replace_image_token({"rows": [[grid.rows]], "cols": [[grid.columns]]}, 0)
        return str(text)

    def options(self, width: int, height: int) -> ImageOptions:
        longest = self._longest_edge(width, height)
        return {} if longest == self._longest else {"size": {"longest_edge": longest}}

    def _longest_edge(self, width: int, height: int) -> int:
        """The processor's own, or the longest in whole tiles that keeps the cap."""
        if self._cap is None or not self._splits:
            return self._longest
        longest = self._longest
        while longest > self._tile:
            if self.visual_tokens(tile_grid(width, height, longest, self._tile)) <= self._cap:
                return longest
            longest = (longest - 1) // self._tile * self._tile
        return self._tile


def tile_grid(width: int, height: int, longest_edge: int, tile: int) -> Grid:
    """Tiles of a picture whose longer side becomes `longest_edge` pixels; no tiles where one would hold it all.

    The arithmetic of `Idefics3ImageProcessor` (transformers), with its roundings: the longer side is scaled, the
    other one follows, made even; then both grow to whole tiles.
    """
    wide = width >= height
    aspect = width / height
    longer = longest_edge
    shorter = int(longer / aspect) if wide else int(longer * aspect)
    shorter = max(shorter + shorter % 2, 1)
    if longer > MOST_TILED_PIXELS:
        aspect = longer / shorter if wide else shorter / longer
        longer = MOST_TILED_PIXELS
        shorter = max(int(longer / aspect) if wide else int(longer * aspect), 1)
    aspect = longer / shorter if wide else shorter / longer
    longer_tiles = math.ceil(longer / tile)
    shorter = int(longer_tiles * tile / aspect) if wide else int(longer_tiles * tile * aspect)
    shorter_tiles = math.ceil(shorter / tile)
    if longer_tiles <= 1 and shorter_tiles <= 1:
        return Grid(0, 0)
    return Grid(shorter_tiles, longer_tiles) if wide else Grid(longer_tiles, shorter_tiles)
