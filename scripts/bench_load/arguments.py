"""The command line of `scripts/bench`."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.bench_load.target import Target
from scripts.bench_load.workloads import ON_REQUEST, RERANKS, WORKLOADS

BARE = "bare"
EXAMPLE = """\
one command for a full comparison:
  scripts/bench --serve "scripts/cotenant serve" --model all-minilm-l6-v2 \\
    --peer-name infinity --peer-url http://127.0.0.1:7998 --peer-path /embeddings \\
    --peer-serve "infinity_emb v2 --model-id FOLDER --served-model-name all-minilm-l6-v2 --port 7998" \\
    --model-folder FOLDER --json figures.json
"""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line; exits with a message where it makes no sense."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Runs fixed workloads against this server and, in turn, another; prints the ratios.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_server(parser, "", name="cotenant", url="http://127.0.0.1:7997", model="all-minilm-l6-v2")
    _add_server(parser, "peer-", name="peer", url=None, model=None)
    parser.add_argument(
        "--lane-header",
        action=argparse.BooleanOptionalAction,
        default=True,
        help='mark indexing for the first server as bulk: "priority": 1 and x-lane: bulk (default: yes)',
    )
    parser.add_argument(
        "--workload",
        action="append",
        choices=[*WORKLOADS, BARE],
        help="repeatable; default: what the other arguments allow, without overload and flood. mixed brings index and"
        " paced along",
    )
    parser.add_argument("--model-folder", type=Path, help=f"the model's weights, for the workload `{BARE}`")
    parser.add_argument("--encoding", choices=["float", "base64"], default="float", help="encoding_format")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--seconds", type=float, default=6.0, help="measured time of one workload in one round")
    parser.add_argument("--warmup-seconds", type=float, default=2.0, help="the same load before it, not counted")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single measurement there")
    options = parser.parse_args(arguments)
    if options.workload and BARE in options.workload and options.model_folder is None:
        parser.error(f"--workload {BARE} needs --model-folder")
    if RERANKS & set(options.workload or ()) and not options.rerank_model:
        parser.error("the workloads rerank* and flood need --rerank-model")
    if options.rounds < 1 or options.seconds <= 0 or options.warmup_seconds < 0:
        parser.error("--rounds and --seconds must be positive, --warmup-seconds not negative")
    return options


def _add_server(parser: argparse.ArgumentParser, prefix: str, *, name: str, url: str | None, model: str | None) -> None:
    group = parser.add_argument_group("the other server" if prefix else "the server")
    group.add_argument(f"--{prefix}url", default=url)
    group.add_argument(f"--{prefix}model", default=model, metavar="NAME", help="its name in requests")
    group.add_argument(f"--{prefix}name", default=name, help="its name in the table (default: %(default)s)")
    group.add_argument(f"--{prefix}path", default="/v1/embeddings", help="/v1/embeddings (default) or /embeddings")
    group.add_argument(
        f"--{prefix}rerank-model", default="", metavar="NAME", help="for the workloads rerank* and flood"
    )
    group.add_argument(f"--{prefix}rerank-path", default="/rerank", help="/rerank (default) or /v1/rerank")
    group.add_argument(
        f"--{prefix}field",
        action="append",
        default=[],
        type=_field,
        metavar="KEY=JSON",
        help="one more field of every request body, repeatable; vLLM wants truncate_prompt_tokens=-1",
    )
    group.add_argument(f"--{prefix}serve", metavar="COMMAND", help="start it so, and stop it at the end")


def _field(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError("expected KEY=JSON")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def targets(options: argparse.Namespace) -> list[tuple[Target, str | None]]:
    """The servers in the order of the table, each with the command that starts it."""
    first = Target(
        name=options.name,
        url=options.url,
        model=options.model,
        path=options.path,
        fields=dict(options.field),
        encoding=options.encoding,
        bulk_lane=options.lane_header,
        rerank_model=options.rerank_model,
        rerank_path=options.rerank_path,
    )
    if not options.peer_url:
        return [(first, options.serve)]
    peer = Target(
        name=options.peer_name,
        url=options.peer_url,
        model=options.peer_model or options.model,
        path=options.peer_path,
        fields=dict(options.peer_field),
        encoding=options.encoding,
        rerank_model=options.peer_rerank_model or options.rerank_model,
        rerank_path=options.peer_rerank_path,
    )
    return [(first, options.serve), (peer, options.peer_serve)]


def workloads(options: argparse.Namespace) -> list[str]:
    """In running order; `index` and `paced` stand before `mixed`, which is compared with them."""
    asked = set(options.workload or WORKLOADS.keys() - ON_REQUEST) - (frozenset() if options.rerank_model else RERANKS)
    if "mixed" in asked:
        asked |= {"index", "paced"}
    return [name for name in WORKLOADS if name in asked]


def wants_bare(options: argparse.Namespace) -> bool:
    """Whether the bare forward is asked for, or possible and nothing in particular is asked for."""
    if options.workload:
        return BARE in options.workload
    return options.model_folder is not None
