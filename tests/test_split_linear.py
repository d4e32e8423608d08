"""fp32 products made of bfloat16 products: near enough, for any shape, and gone without a trace where undone."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

from runtime.backend import TorchBackend
from runtime.devices import compiling, split_linear
from runtime.devices.compiling import NotCompiled, find_compiler, load_kernel
from runtime.devices.cpu import CpuDevice
from runtime.devices.split_linear import (
    BLOCK,
    KINDS,
    SplitLinear,
    SplitProducts,
    ThreeParts,
    TwoParts,
    arranged,
    swaps_for,
)
from runtime.registry import ModelSpec

PLENTY_BYTES = 1 << 40
RELATIVE_ERROR = {TwoParts: 2**-16, ThreeParts: 2**-20}
"""Root mean square of the result's error, relative to the result's; fp32 itself is between 2^-22 and 2^-21."""


def has_compiler() -> bool:
    try:
        return bool(find_compiler())
    except NotCompiled:
        return False


# Not where the kernel does not compile: that is a fault, and must not pass for a machine without the means.
needs_amx = pytest.mark.skipif(
    not (split_linear.has_amx() and has_compiler()), reason="the processor has no AMX, or the machine no C++ compiler"
)


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def layer_of(depth: int, columns: int, bias: bool = True) -> torch.nn.Linear:
    torch.manual_seed(depth * columns)
    return torch.nn.Linear(depth, columns, bias=bias).requires_grad_(False)


def split(layer: torch.nn.Linear, kind: type[SplitLinear]) -> SplitProducts:
    swap = SplitProducts([layer], kind)
    swap.apply()
    return swap


def error_of(layer: torch.nn.Linear, x: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative to the result's size."""
    return float((layer(x).double() - exact).norm() / exact.norm())


@needs_amx
def test_the_kernel_compiles_here() -> None:
    assert split_linear.available()


@needs_amx
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(1, 32, 32), (16, 64, 96), (17, 384, 384), (32, 33, 50), (512, 384, 1152), (130, 1536, 384), (3, 4096, 65)],
)
def test_products_are_those_of_fp32_for_any_shape(kind: type[SplitLinear], rows: int, depth: int, columns: int) -> None:
    layer = layer_of(depth, columns)
    x = torch.randn(rows, depth)
    exact = x.double() @ layer.weight.double().T + layer.bias.double()
    split(layer, kind)
    assert error_of(layer, x, exact) <= RELATIVE_ERROR[kind]


@needs_amx
def test_more_parts_are_nearer() -> None:
    layer = layer_of(384, 384)
    x = torch.randn(64, 384)
    exact = x.double() @ layer.weight.double().T + layer.bias.double()
    plain = error_of(layer, x, exact)
    swap = split(layer, TwoParts)
    two = error_of(layer, x, exact)
    swap.undo()
    split(layer, ThreeParts)
    three = error_of(layer, x, exact)
    assert three <= 2 * plain < two


@needs_amx
@pytest.mark.parametrize("rows", [1, 40, 300])
def test_a_row_does_not_depend_on_the_others_nor_on_the_threads(rows: int) -> None:
    layer = layer_of(384, 320)
    split(layer, TwoParts)
    x = torch.randn(rows, 384)
    together = layer(x)
    torch.set_num_threads(1)
    assert torch.equal(layer(x), together)
    assert all(torch.equal(layer(x[row]), together[row]) for row in range(rows))


@needs_amx
@pytest.mark.parametrize("bias", [True, False])
def test_any_number_of_dimensions_and_any_strides(bias: bool) -> None:
    layer = layer_of(64, 48, bias)
    split(layer, ThreeParts)
    x = torch.randn(3, 64, 5).transpose(1, 2)
    y = layer(x)
    assert y.shape == (3, 5, 48)
    assert torch.equal(y[1, 2], layer(x[1, 2].contiguous()))
    assert layer(torch.zeros(0, 64)).shape == (0, 48)


@needs_amx
def test_infinity_and_nan_never_pass_for_numbers() -> None:
    layer = layer_of(64, 48)
    split(layer, TwoParts)
    x = torch.zeros(2, 64)
    x[0, 3], x[1, 4] = float("inf"), float("nan")
    assert not torch.isfinite(layer(x)).any()


@needs_amx
def test_other_types_are_refused() -> None:
    layer = layer_of(64, 48)
    split(layer, TwoParts)
    with pytest.raises(RuntimeError, match="fp32 only"):
        layer(torch.zeros(2, 64, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="not of this shape"):
        layer(torch.zeros(2, 128))


def test_three_parts_are_the_whole_number() -> None:
    weight = torch.randn(40, 70) * torch.logspace(-6, 6, 70)
    parts = arranged(weight, 3).view(torch.bfloat16).view(4, 3, 3, 16, 16, 2)
    whole = parts.double().sum(dim=2).permute(0, 3, 1, 2, 4).reshape(64, 96)
    assert torch.equal(whole[:40, :70], weight.double())
    assert not whole[40:].any()
    assert not whole[:, 70:].any()


def test_undone_a_layer_is_what_it_was() -> None:
    layer = layer_of(64, 48)
    weight = layer.weight
    swap = split(layer, TwoParts)
    assert type(layer) is TwoParts
    assert layer.weight.nbytes == 64 * 64 * 2 * 2  # columns are padded to whole blocks
    swap.undo()
    assert type(layer) is torch.nn.Linear
    assert layer.weight is weight


@needs_amx
def test_layers_stay_that_are_small_or_half_or_share_their_weight_with_an_embedding() -> None:
    table = torch.nn.Embedding(64, 64)
    tied = torch.nn.Linear(64, 64)
    tied.weight = table.weight
    others = [tied, torch.nn.Linear(64, BLOCK - 1), torch.nn.Linear(64, 64, dtype=torch.bfloat16)]
    assert not swaps_for(torch.nn.ModuleList([table, *others]), PLENTY_BYTES)
    taken = torch.nn.Linear(64, 64)
    swap = swaps_for(torch.nn.ModuleList([table, *others, taken]), PLENTY_BYTES)[0]
    swap.apply()
    assert [isinstance(layer, SplitLinear) for layer in (*others, taken)] == [False, False, False, True]


@needs_amx
def test_what_the_memory_has_no_room_for_is_not_tried() -> None:
    module = torch.nn.ModuleList([torch.nn.Linear(64, 64)])
    names = [[swap.name for swap in swaps_for(module, 64 * 64 * size)] for size in (6, 5, 3)]
    assert names == [
        ["fp32 products as 3 of bfloat16", "fp32 products as 6 of bfloat16"],
        ["fp32 products as 3 of bfloat16"],
        [],
    ]


@needs_amx
def test_who_turns_it_off_keeps_the_library_s_products() -> None:
    module = torch.nn.ModuleList([torch.nn.Linear(64, 64)])
    assert CpuDevice(lanes=1).layer_swaps(module)
    assert not CpuDevice(lanes=1, split_products=False).layer_swaps(module)


# -- compiling ---------------------------------------------------------------------------------------------------


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that compiles anywhere, and a cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "nothing.cpp"
    source.write_text("int cotenant_nothing() { return 0; }\n")
    return source


def compiler_runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    runs: list[Any] = []
    run = subprocess.run

    def counting(*args: Any, **kwargs: Any) -> Any:
        runs.append(args)
        return run(*args, **kwargs)

    monkeypatch.setattr(subprocess, "run", counting)
    return runs


@needs_amx
def test_a_kernel_is_compiled_once_until_something_changes(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = compiler_runs(monkeypatch)
    load_kernel(kernel, [])
    load_kernel(kernel, [])
    assert len(runs) == 1
    load_kernel(kernel, ["-DOTHER"])
    kernel.write_text("int cotenant_nothing() { return 1; }\n")
    load_kernel(kernel, [])
    assert len(runs) == 3
    left = sorted((kernel.parent / "cache" / "cotenant" / "kernels").iterdir())
    assert [path.suffix for path in left] == [".so"] * 3


@needs_amx
def test_what_does_not_compile_says_why_and_leaves_nothing(kernel: Path) -> None:
    kernel.write_text("int main() { return missing; }\n")
    with pytest.raises(NotCompiled, match=r"the compiler failed: .*missing"):
        load_kernel(kernel, [])
    assert not list((kernel.parent / "cache" / "cotenant" / "kernels").iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_take_no_more_than_is_predicted(monkeypatch: pytest.MonkeyPatch, kind: type[SplitLinear]) -> None:
    layers = [layer_of(64, 96), layer_of(33, 50), layer_of(16, 64)]
    small, shapes = layers[2], [(layer.out_features, layer.in_features) for layer in layers]
    own_bytes = sum(layer.weight.nbytes for layer in layers)
    assert CpuDevice().swap_bytes(shapes) == 0 or split_linear.available()
    monkeypatch.setattr(split_linear, "available", lambda: True)
    (fast, exact) = swaps_for(torch.nn.ModuleList(layers), PLENTY_BYTES)
    (fast if kind is TwoParts else exact).apply()
    assert type(small) is torch.nn.Linear
    added_bytes = sum(layer.weight.nbytes for layer in layers) - own_bytes
    assert added_bytes <= CpuDevice().swap_bytes(shapes)
    assert kind is TwoParts or added_bytes == CpuDevice().swap_bytes(shapes)
    assert CpuDevice(split_products=False).swap_bytes(shapes) == 0


def test_a_model_is_predicted_with_the_most_parts(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Callable[[str], Path]
) -> None:
    spec, device = ModelSpec(id="tiny", source=str(tiny_model("bert-embedder"))), CpuDevice()
    monkeypatch.setattr(split_linear, "available", lambda: False)
    plain = TorchBackend().predict(spec, device, 512)
    monkeypatch.setattr(split_linear, "available", lambda: True)
    predicted = TorchBackend().predict(spec, device, 512)
    network = AutoModel.from_pretrained(str(spec.source))
    own_bytes = sum(weight.nbytes for weight in network.parameters())
    swaps_for(network, PLENTY_BYTES)[1].apply()
    added_bytes = sum(weight.nbytes for weight in network.parameters()) - own_bytes
    assert predicted.weight_bytes - plain.weight_bytes == added_bytes > 0


def test_without_a_compiler_the_library_s_products_serve(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(split_linear, "has_amx", lambda: True)
    split_linear.available.cache_clear()
    try:
        assert not swaps_for(torch.nn.ModuleList([torch.nn.Linear(64, 64)]), PLENTY_BYTES)
    finally:
        split_linear.available.cache_clear()
    assert "no C++ compiler: looked for no-such-compiler" in caplog.text


def test_an_unreadable_cache_folder_is_a_reason_too(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (kernel.parent / "cache").write_text("a file where the folder should be")
    monkeypatch.setattr(compiling, "find_compiler", lambda: __file__)
    with pytest.raises(NotCompiled, match="NotADirectoryError"):
        load_kernel(kernel, [])
