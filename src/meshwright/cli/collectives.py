"""``meshwright collectives``: every algorithm of a collective, priced, shown step by step, or run on local processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from meshwright.cli.options import Count, OneOf, Size, command
from meshwright.cli.output import emit, tell
from meshwright.errors import InputError, Mistake, NoAnswer, did_you_mean

if TYPE_CHECKING:
    from meshwright.spec.cluster import Cluster

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
DEFAULT_BYTES = 128 << 20
DEFAULT_RUN_BYTES = 1 << 20
DEFAULT_RANKS = 8
DEFAULT_TOKENS = 4096


@command()
@click.argument("op", type=OneOf("OP", OPS), required=False, metavar="[OP]")
@click.option("--size", type=Size(), help="Payload of a rank; the full tensor of all_gather and reduce_scatter.  [default: 128MiB]")
@click.option("--ranks", type=Count(), help="Ranks of the group, neighbours.  [default: those of a node]")
@click.option("--cluster", metavar="C", help="Price on this: a catalog name or a TOML file.")
@click.option("--run", is_flag=True, help="Run on local processes (torch), against torch's own collective.")
@click.option("--show", is_flag=True, help="Who sends which chunk to whom, step by step.")
@click.option("--algorithm", metavar="NAME", help="Which one to show.  [default: ring; pairwise for all_to_all]")
@click.option("-o", "--output", metavar="FILE.svg", type=click.Path(path_type=Path), help="Draw it, with --show.")
@click.option("--experts", metavar="MODEL", help="all_to_all only: how tokens get to this model's experts, and back.")
@click.option("--tokens", type=Count(), help="Tokens of each rank, with --experts.  [default: 4096]")
@click.option("--load", metavar="FILE.json", type=click.Path(path_type=Path), help='{"loads": [...]}, with --experts.  [default: balanced]')
def collectives(
    op: str | None, size: int | None, ranks: int | None, cluster: str | None, run: bool, show: bool, algorithm: str | None,
    output: Path | None, experts: str | None, tokens: int | None, load: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Algorithms of OP (all_reduce, all_gather, reduce_scatter or all_to_all; all of them if left out).

    Prints for each its steps, the bytes that the busiest rank sends, and, with --cluster, its time and which is fastest from
    which size on. With --experts: what each way to dispatch tokens sends over each tier, and how long it takes.
    """
    _refuse_unused({"--algorithm": (algorithm, show), "--output": (output, show), "--tokens": (tokens, experts), "--load": (load, experts)})
    from meshwright.spec.load_cluster import resolve_cluster

    where = resolve_cluster(cluster) if cluster else None
    count = ranks or (where.gpus_per_node if where else DEFAULT_RANKS)
    if experts:
        _experts(op, experts, count, where, tokens or DEFAULT_TOKENS, load, as_json)
        return
    if show:
        _show(op, count, where, algorithm, output, as_json)
        return
    payload = size or (DEFAULT_RUN_BYTES if run else DEFAULT_BYTES)
    _report(OPS if op is None else (op,), payload, count, where, run, as_json)


def _refuse_unused(options: dict[str, tuple[object, object]]) -> None:
    """Options that were given without the one that they belong to."""
    owner = {"--algorithm": "--show", "--output": "--show", "--tokens": "--experts", "--load": "--experts"}
    wrong = [
        Mistake("command line", name, None, f"with {owner[name]}", problem=f"is only used with {owner[name]}")
        for name, (given, needed) in options.items()
        if given and not needed
    ]
    if wrong:
        raise InputError(wrong)


def _experts(op: str | None, experts: str, ranks: int, cluster: Cluster | None, tokens: int, load: Path | None, as_json: bool) -> None:
    from meshwright.collectives.experts.loads import read_loads
    from meshwright.collectives.experts.report import expert_report
    from meshwright.render.experts import experts_text
    from meshwright.spec.load_model import resolve_model

    if op not in (None, "all_to_all"):
        raise InputError([Mistake("command line", "OP", op, "all_to_all with --experts")])
    if cluster is None:
        legal, hint = "a name of the catalog, or a TOML file", "`meshwright catalog clusters` lists the names"
        raise InputError([Mistake("command line", "--cluster", None, legal, hint, "is missing")])
    loads = read_loads(load) if load else None
    found = expert_report(resolve_model(experts), cluster, ranks, tokens, loads, str(load))
    emit(as_json, found.as_json(), lambda: experts_text(found))


def _report(ops: tuple[str, ...], payload: int, ranks: int, cluster: Cluster | None, run: bool, as_json: bool) -> None:
    from meshwright.collectives.report import report
    from meshwright.render.collectives import collectives_text

    found = [report(op, payload, ranks, cluster, run) for op in ops]
    answer = found[0].as_json() if len(found) == 1 else {"collectives": [one.as_json() for one in found]}
    wrong = [f"{one.op} {row.name}" for one in found for row in one.algorithms if not row.sound]
    if wrong:
        raise NoAnswer(f"not what it should be: {', '.join(wrong)}", answer)
    emit(as_json, answer, lambda: "\n\n\n".join(collectives_text(one) for one in found))


def _show(op: str | None, ranks: int, cluster: Cluster | None, algorithm: str | None, output: Path | None, as_json: bool) -> None:
    from meshwright.collectives.report import build
    from meshwright.collectives.show import show_text
    from meshwright.collectives.show_svg import show_svg
    from meshwright.spec.files import write_text

    op = op or "all_reduce"
    name = algorithm or ("pairwise" if op == "all_to_all" else "ring")
    steps, names = build(op, name, ranks, cluster)
    if steps is None:
        raise InputError([Mistake("command line", "--algorithm", name, ", ".join(names), did_you_mean(name, names))])
    text = show_text(steps, name)
    if output:
        write_text(output, show_svg(steps, name))
        tell(f"wrote {output}")
    keys = ("step", "sender", "receiver", "chunk", "reduce")
    transfers = [dict(zip(keys, row, strict=True)) for row in steps.rows()]
    answer = {"op": op, "algorithm": name, "ranks": ranks, "chunks": steps.chunks, "steps": steps.num_steps, "transfers": transfers}
    emit(as_json, answer, lambda: text.rstrip("\n"))
