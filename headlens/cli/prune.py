"""`headlens prune`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from headlens.cli.options import Device, DType, ModelName, Revision, path_of
from headlens.cli.pruning_options import (
    CalibrationFiles,
    Draws,
    Every,
    MaxLength,
    Objective,
    Overwrite,
    Seed,
    SelfContained,
    Tasks,
    Texts,
    UnitOfHeads,
    amount_of,
    calibration_corpus,
    check_name,
    tasks_of,
)
from headlens.cli.terminal import check_writable, command_line, interrupts_held, plain_errors, progress_bar
from headlens.errors import PlanError
from headlens.files import printable

if TYPE_CHECKING:
    from headlens.models import LoadedModel
    from headlens.plan import HeadPlan
    from headlens.pruning import Pruned, Wish
    from headlens.roles import Roles


def prune(
    model: ModelName,
    out: Annotated[Path, typer.Option(metavar="DIR", parser=path_of, help="Folder for the checkpoint.")],
    keep: Annotated[
        str | None, typer.Option(help="How many heads stay: a share (0.6, 60%) or a number.", show_default=False)
    ] = None,
    remove: Annotated[str | None, typer.Option(help="How many go, instead.", show_default=False)] = None,
    heads: Annotated[
        str | None,
        typer.Option(metavar="L3H2,L7H*", help="These heads go, and nothing is ranked.", show_default=False),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(parser=path_of, help="A plan.json to follow, and nothing is ranked.", show_default=False),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="How heads are ranked; `headlens importance --help` lists the methods. Default: greedy, a search; "
            "loo_mean where layers share weights or have more than 30 million parameters.",
            show_default=False,
        ),
    ] = None,
    every: Every = None,
    objective: Objective = None,
    unit: UnitOfHeads = None,
    per_layer: Annotated[bool, typer.Option("--per-layer", help="The same number from every layer.")] = False,
    floor: Annotated[int, typer.Option(min=0, help="Heads that every layer keeps.")] = 0,
    keep_roles: Annotated[
        list[str] | None,
        typer.Option(
            "--keep-roles",
            metavar="DIR:ROLE,...",
            help="Heads that have one of these roles (ids or kinds) in the profile of that folder stay: minilm:syntax. "
            "May be repeated.",
            show_default=False,
        ),
    ] = None,
    fill: Annotated[
        str, typer.Option(help="What removed heads go on giving: mean (their mean output, in the bias) or zero.")
    ] = "mean",
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Refit what is left by least squares; nearer to the original, not always better."
        ),
    ] = False,
    masked: Annotated[
        bool,
        typer.Option("--masked", help="Zero the heads instead: nothing gets smaller, and it is not called pruned."),
    ] = False,
    expand: Annotated[
        bool, typer.Option("--expand", help="First give each head keys and values of its own (grouped models).")
    ] = False,
    calibration: CalibrationFiles = None,
    evals: Tasks = None,
    draws: Draws = 5,
    texts: Texts = None,
    max_length: MaxLength = None,
    speed: Annotated[bool, typer.Option(help="Time the model beside the original.")] = True,
    self_contained: SelfContained = False,
    overwrite: Overwrite = False,
    device: Device = "cpu",
    dtype: DType = "float32",
    revision: Revision = None,
    seed: Seed = 0,
) -> None:
    """Take heads out of MODEL for good, measure what that did, and save the checkpoint.

    Beside the result stand the original, random heads in the same number, and no heads at all.

    Examples: headlens prune minilm --keep 0.5 --out small; headlens prune tiny-gpt2 --remove 8 --eval grammar:400
    --out tiny
    """
    with plain_errors("nothing was written"):
        check_writable(out)
        amounts = amount_of(keep, "--keep"), amount_of(remove, "--remove")
        with progress_bar() as progress:
            with interrupts_held():
                from headlens.calibration import ObjectiveName
                from headlens.importance.methods import check_methods
                from headlens.models import load_whole
                from headlens.plans import Unit
                from headlens.pruning import Fill, prune
                from headlens.surgery.checkpoint import check_free

            check_free(out, overwrite=overwrite)
            given = _by_hand(amounts, heads, plan)
            if by_hand := heads is not None or plan is not None:
                _check_by_hand(unit, per_layer, floor, keep_roles)
            profiles = [_profile_and_roles(spec) for spec in keep_roles or []]
            if method is not None:
                check_methods([method], None if by_hand else every)
            check_name(objective, get_args(ObjectiveName), "--objective")
            check_name(unit, get_args(Unit), "--heads-as")
            check_name(fill, get_args(Fill), "--fill")
            tasks, corpus = tasks_of(evals), calibration_corpus(calibration, model)
            progress("loading the model", 0, 1)
            loaded = load_whole(model, device=device, dtype=dtype, revision=revision)
            wish = _wish(loaded, amounts, given, unit, per_layer, floor, profiles, expand)
            result = prune(
                loaded,
                corpus,
                wish,
                method=method,
                every=every,
                objective=cast(Any, objective),
                fill=cast(Any, fill),
                repair=repair,
                masked=masked,
                expand=expand,
                tasks=tasks,
                draws=draws,
                speed=speed,
                texts=texts,
                max_length=max_length,
                seed=seed,
                progress=progress,
            )
            result.facts["command"] = command_line()
            progress("writing the checkpoint", 0, 1)
            folder = result.save(out, self_contained=self_contained, overwrite=overwrite)
        _tell(result, folder)


def _check_by_hand(unit: str | None, per_layer: bool, floor: int, keep_roles: list[str] | None) -> None:
    given = {"--heads-as": unit, "--per-layer": per_layer, "--floor": floor, "--keep-roles": keep_roles}
    if ignored := [option for option, value in given.items() if value]:
        raise PlanError(f"{ignored[0]} is of a ranking, and --heads and --plan name the heads that go; leave it out.")


def _by_hand(
    amounts: tuple[float | int | None, float | int | None], heads: str | None, plan: Path | None
) -> str | HeadPlan | None:
    """The heads or the plan that are given; PlanError, before the model is loaded, where not one way is taken."""
    from headlens.plan import HeadPlan

    keep, remove = amounts
    if keep is not None and remove is not None:
        raise PlanError("Say either how many heads to keep or how many to remove.")
    ways = [amounts != (None, None), heads is not None, plan is not None]
    if sum(ways) != 1:
        raise PlanError("Say how many heads stay or go (--keep, --remove), or which (--heads, --plan); one of these.")
    if heads is not None:
        _check_names(heads)
        return heads
    if plan is not None:
        return HeadPlan.load(plan)
    if remove == 0 or (isinstance(keep, float) and keep == 1):
        raise PlanError("All heads would stay, and none is to go; ask for fewer to be kept.")
    if keep == 0:
        raise PlanError("--keep 0 leaves no head; if all are to go, say so with --remove 100%.")
    return None


def _check_names(heads: str) -> None:
    """Whether these could be heads; which there are, only the model says. PlanError where they cannot."""
    from headlens.plan import HeadPlan
    from headlens.plans import named

    for pattern in heads.split(","):
        try:
            named([re.sub(r"\d{1,6}", "0", pattern)], HeadPlan.full(1, 1))
        except PlanError:
            raise PlanError(
                f"Heads are named like L3H2, L7H* (a whole layer) or L*H0; got {pattern.strip()!r}."
            ) from None


def _profile_and_roles(spec: str) -> tuple[str, Roles, list[str]]:
    """Of "DIR:ROLE,..." the folder, the roles of its profile, and those that are named."""
    from headlens.results import Profile

    folder, colon, names = spec.rpartition(":")
    if not colon or not folder:
        raise PlanError(f"--keep-roles takes the folder of a profile and roles, profiles/minilm:syntax; got {spec!r}.")
    return folder, Profile.load(folder).roles, [name.strip() for name in names.split(",")]


def _wish(
    loaded: LoadedModel,
    amounts: tuple[float | int | None, float | int | None],
    given: str | HeadPlan | None,
    unit: str | None,
    per_layer: bool,
    floor: int,
    profiles: list[tuple[str, Roles, list[str]]],
    expand: bool,
) -> Wish | HeadPlan:
    from headlens.models import network_of
    from headlens.plans import named
    from headlens.pruning import Wish
    from headlens.surgery import present_plan

    base = present_plan(network_of(loaded.model))
    base = base.apart if expand else base
    if isinstance(given, str):
        return base.without(named(given, base) & set(base))
    if given is not None:
        return given
    protected = frozenset(head for one in profiles for head in _with_roles(*one, base))
    return Wish(amounts[0], amounts[1], cast(Any, unit), per_layer, floor, protected)


def _with_roles(folder: str, roles: Roles, names: list[str], base: HeadPlan) -> frozenset[tuple[int, int]]:
    from headlens.plans import with_roles

    if (roles.n_layers, roles.n_heads) != (base.layers, base.heads):
        raise PlanError(
            f"{folder} is a profile of {roles.n_layers} x {roles.n_heads} heads, and the model has {base.layers} x "
            f"{base.heads}; take the profile of this model."
        )
    return with_roles(roles, names)


def _tell(result: Pruned, folder: Path) -> None:
    from headlens.pruning_words import lines_of

    for line in lines_of(result):
        typer.echo(line)
    typer.echo(f"Saved: {printable(folder)}")
