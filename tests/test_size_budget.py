"""The size budget: no long file, no long function, no module named for nothing."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 50
EMPTY_NAMES = {"helper", "helpers", "manager", "managers", "util", "utils"}


def modules(*folders: str, root: Path = ROOT) -> list[Path]:
    return sorted(path for folder in folders for path in (root / folder).rglob("*.py"))


def long_files(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_FILE_LINES:
            yield f"{path} has {lines} lines, of {MAX_FILE_LINES}"


def long_functions(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    yield f"{path}:{node.lineno} {node.name} has {lines} lines, of {MAX_FUNCTION_LINES}"


def empty_names(paths: list[Path], root: Path = ROOT) -> Iterator[str]:
    for path in paths:
        words = {word for part in path.relative_to(root).with_suffix("").parts for word in part.split("_")}
        for word in sorted(words & EMPTY_NAMES):
            yield f"{path} is named {word!r}, which does not say what it is about"


def test_no_file_is_too_long() -> None:
    assert list(long_files(modules("runtime", "tests"))) == []


def test_no_function_is_too_long() -> None:
    assert list(long_functions(modules("runtime"))) == []


def test_every_module_is_named_for_what_it_is_about() -> None:
    assert list(empty_names(modules("runtime", "tests"))) == []


def test_the_budget_names_each_offender(tmp_path: Path) -> None:
    body = "    pass\n" * MAX_FUNCTION_LINES
    source = f"async def long_one() -> None:\n{body}\n\ndef short_one() -> None:\n    pass\n"
    offender = tmp_path / "runtime" / "batch_utils.py"
    offender.parent.mkdir()
    offender.write_text(source + "\n" * MAX_FILE_LINES, encoding="utf-8")

    paths = modules("runtime", root=tmp_path)

    assert [line.split(" has ")[0] for line in long_files(paths)] == [str(offender)]
    assert [line.split(" has ")[0] for line in long_functions(paths)] == [f"{offender}:1 long_one"]
    assert [line.split(",")[0] for line in empty_names(paths, tmp_path)] == [f"{offender} is named 'utils'"]
