"""From trails to a verdict."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from bitproof import environment
from bitproof.compare.align import Joint, join
from bitproof.compare.causes import explain
from bitproof.compare.causes.case import Case
from bitproof.compare.causes.made import made
from bitproof.compare.causes.randomness import latent
from bitproof.compare.causes.state import lenient_loads
from bitproof.compare.divergence import Comparison, saved_noise, shape_of, walk
from bitproof.compare.picture import draw
from bitproof.compare.timeline import Placed, Timeline
from bitproof.compare.verdict import Cause, Latent, Moment, Seam, Steps, Trails, Verdict, VerdictName
from bitproof.environment import Difference
from bitproof.errors import IncomparableError
from bitproof.trail.reader import Leg, Trail
from bitproof.trail.records import RESULT_FACETS

_MOST_NAMES = 5
_LOADER_SETTINGS = ("workers", "start_method", "persistent_workers", "batch_size", "length")


@dataclass(frozen=True)
class Chain:
    """One rank's legs, placed.

    Args:
        reference: what was expected.
        legs: the other run's legs, on the reference's clock.
        joints: how each leg but the first joined.
    """

    reference: Timeline
    legs: tuple[Placed, ...]
    joints: tuple[Joint, ...]

    @property
    def last(self) -> Placed:
        """The last leg."""
        return self.legs[-1]

    @cached_property
    def noise(self) -> frozenset[str]:
        """What the first leg, which starts as the reference did, saves otherwise is noise: times, paths."""
        fresh = len(self.legs) > len(self.joints) and len(self.legs) > 1
        return saved_noise(self.reference, self.legs[0]) if fresh else frozenset()


def compare_trails(reference: Trail, other: Trail) -> Verdict:
    """Compare two recorded runs.

    Each may have several legs. A single leg whose first state the reference has in its middle, or that loaded a model
    before its first step, is taken for a resumed one.
    """
    common = [rank for rank in reference.ranks if rank in other.ranks]
    try:
        chains = [_chain_of_trails(reference, other, rank) for rank in common]
        verdict = judge(chains, controlled=False)
    except IncomparableError as error:
        verdict = Verdict(verdict="could-not-judge", reason="incomparable", message=str(error))
    return _with_trails(verdict, Trails(reference=str(reference.path), resumed=[str(other.path)]))


def compare_resume(
    reference: Trail, legs: Sequence[Trail], kills: Sequence[Moment], *, controlled: bool = False
) -> Verdict:
    """Compare a run that was cut off and resumed with its reference.

    Args:
        reference: the uninterrupted run.
        legs: one trail a leg: the first from the start, each further one resumed.
        kills: where each leg but the last was cut off.
        controlled: the reference was repeated, and came out the same up to where the two part.
    """
    trails = Trails(
        reference=str(reference.path),
        interrupted=[str(t.path) for t in legs[:-1]],
        resumed=[str(legs[-1].path)],
    )
    try:
        chains = [
            chain(stitch(reference.of_rank(rank)), [t.of_rank(rank)[0] for t in legs if t.of_rank(rank)], kills)
            for rank in reference.ranks
        ]
        verdict = judge(chains, controlled=controlled, kills=kills)
    except IncomparableError as error:
        verdict = Verdict(verdict="could-not-judge", reason="incomparable", message=str(error))
    return _with_trails(verdict, trails)


def stitch(legs: Sequence[Leg]) -> Timeline:
    """Put one rank's legs in a row: each further one where its first state is found in what came before."""
    placed = [Placed(legs[0])]
    for leg in legs[1:]:
        line = Timeline(tuple(placed))
        joint = join(line, leg, interrupted=placed)
        placed.append(Placed(leg, joint.step if joint.step is not None else line.last, joint.micro))
    return Timeline(tuple(placed))


def chain(reference: Timeline, legs: Sequence[Leg], kills: Sequence[Moment] = ()) -> Chain:
    """Place a run's legs on the reference's clock: the first at the start, each further one at its seam."""
    placed = [Placed(legs[0])]
    joints = []
    for i, leg in enumerate(legs[1:]):
        latest = kills[i].step if i < len(kills) else placed[-1].last
        joint = join(reference, leg, not_after=max(latest, placed[-1].last), interrupted=placed)
        joints.append(joint)
        placed.append(Placed(leg, joint.step or 0, joint.micro))
    return Chain(reference, tuple(placed), tuple(joints))


def judge(chains: Sequence[Chain], *, controlled: bool, kills: Sequence[Moment] = ()) -> Verdict:
    """Judge every rank's chain and put the answers together: the first divergence over all ranks counts."""
    results = [(c, *_first_finding(c)) for c in chains]
    found = [r for r in results if r[2].divergence is not None]
    worst = min(found, key=_order) if found else None
    chain_, leg, result = worst if worst is not None else results[0]
    causes, name = _explained(chains, chain_, leg, result, controlled=controlled)
    seams = _seams(chain_, kills)
    return Verdict(
        verdict=name,
        steps=Steps(chain_.reference.last, result.compared, result.identical),
        seams=seams,
        divergence=result.divergence,
        causes=causes,
        latent=_unblamed(chain_, result),
        environment=_differences(chain_, leg),
        unseen=sorted({what for _, _, r in results for what in r.unseen}),
        picture=draw(
            chain_.reference,
            chain_.legs[:-1],
            chain_.last,
            result.divergence,
            chain_.noise,
            fresh=_joint_of(chain_, chain_.last) is None,
        ),
    )


def control_agrees(reference: Trail, control: Trail, step: int) -> Verdict | None:
    """Tell whether a repetition of the reference equals it up to a step; else the verdict that it does not."""
    for rank in reference.ranks:
        again = control.of_rank(rank)
        if not again:
            continue
        line, leg = stitch(reference.of_rank(rank)), Placed(again[0])
        result = walk(line, leg, upto=step, fresh=True)
        if result.divergence is not None:
            verdict = judge([Chain(line, (leg,), ())], controlled=False)
            return _with_trails(verdict, Trails(reference=str(reference.path), resumed=[str(control.path)]))
    return None


def _chain_of_trails(reference: Trail, other: Trail, rank: int) -> Chain:
    line, legs = stitch(reference.of_rank(rank)), other.of_rank(rank)
    if len(legs) == 1:
        joint = join(line, legs[0])
        loaded = any(
            e.kind == "load-state-dict" and e.data.get("on") == "module" and e.step == 0 for e in legs[0].events
        )
        if (joint.how == "state" and joint.step) or (joint.how != "state" and loaded):
            return Chain(line, (Placed(legs[0], joint.step or 0, joint.micro),), (joint,))
    return chain(line, legs)


def _first_finding(c: Chain) -> tuple[Placed, Comparison]:
    """Walk the legs in order: a control leg that differs comes before any blame on a resume.

    What a resumed leg saved otherwise counts by itself only if no later leg trains otherwise: then it led there.
    """
    noise = c.noise
    kept: tuple[Placed, Comparison] | None = None
    for leg in c.legs:
        fresh = _joint_of(c, leg) is None
        result = walk(c.reference, leg, upto=None if leg is c.last else leg.last, noise=noise, fresh=fresh)
        if result.divergence is None:
            continue
        if result.divergence.facet == "saved" and not fresh:
            kept = kept or (leg, result)
            continue
        if kept is not None and result.saved is None:
            before = kept[1]
            result = replace(result, saved=before.saved, saved_names=before.saved_names, saved_lines=before.saved_lines)
        return leg, result
    return kept or (c.last, result)


def _order(found: tuple[Chain, Placed, Comparison]) -> tuple[int, int, int]:
    """Sort by step, then by causal order: a batch that differs on one rank precedes the gradients that all share."""
    divergence = found[2].divergence
    assert divergence is not None
    facets = list(RESULT_FACETS)
    cause = facets.index(divergence.facet) if divergence.facet in facets else len(facets)
    return divergence.step, cause, divergence.rank


def _explained(
    chains: Sequence[Chain], c: Chain, leg: Placed, result: Comparison, *, controlled: bool
) -> tuple[list[Cause], VerdictName]:
    joint = _joint_of(c, leg)
    if joint is not None and _never_resumed(c, leg, joint):
        return [_not_resumed(c, leg)], "not-resumed"
    if result.divergence is None:
        return [], "identical"
    case = Case(
        reference=c.reference,
        leg=leg,
        divergence=result.divergence,
        joint=joint,
        interrupted=c.legs[:-1],
        environment=tuple(_differences(c, leg)),
        controlled=controlled,
        saved=result.saved,
        saved_names=result.saved_names,
        saved_apart=result.saved_lines,
        peers=tuple((p.reference, p.last) for p in chains if p is not c),
    )
    control = joint is None and len(c.legs) > 1
    return explain(case), "not-reproducible" if control else "diverged"


def _joint_of(c: Chain, leg: Placed) -> Joint | None:
    index = next(i for i, p in enumerate(c.legs) if p is leg) - (len(c.legs) - len(c.joints))
    return c.joints[index] if index >= 0 else None


def _never_resumed(c: Chain, leg: Placed, joint: Joint) -> bool:
    """Tell whether a leg started anew although an earlier one had written a checkpoint by then."""
    return joint.step == 0 and joint.how == "state" and any(step > 0 for step in _checkpoints(c, leg))


def _checkpoints(c: Chain, leg: Placed) -> list[int]:
    """Return after which steps the earlier legs saved a file with a tensor of each weight's shape."""
    head = c.reference.detail(1)
    weights = head.facets.get("weights") if head is not None else None
    wanted = {shape_of(kind) for kind in weights.kinds} if weights is not None else set()
    earlier = c.legs[: next(i for i, p in enumerate(c.legs) if p is leg)]
    return [
        step
        for placed in earlier
        for step, event in placed.events("file-saved")
        if event.saved is None or wanted <= {shape_of(kind) for kind in placed.leg.tensors(event.saved).kinds}
    ]


def _not_resumed(c: Chain, leg: Placed) -> Cause:
    before = _checkpoints(c, leg)
    loaded = [e for _, e in leg.events("file-loaded")]
    evidence = [
        "the resumed leg's first state is the reference's first state",
        f"a checkpoint had been written after step {before[-1]}",
        f"the resumed leg read {loaded[0].data.get('path')}" if loaded else "the resumed leg read no checkpoint",
        *lenient_loads(leg),
    ]
    return made("not-resumed", "certain", "the resumed leg started again from the beginning", evidence, None)


def _unblamed(c: Chain, result: Comparison) -> list[Latent]:
    """List what differs and matters to nobody; where the legs part, a generator that is drawn from may matter."""
    if not c.last.leg.steps:
        return []
    found = latent(c.reference, c.last, also_drawn=result.divergence is None)
    if not c.joints:
        names = sorted(saved_noise(c.reference, c.last) - set(result.saved_names))
        if names and result.divergence is None:
            more = ", …" if len(names) > _MOST_NAMES else ""
            summary = f"what is saved differs in {', '.join(names[:_MOST_NAMES])}{more}, which training does not read"
            found.append(Latent("other-state-not-restored", summary))
    return found


def _seams(c: Chain, kills: Sequence[Moment]) -> list[Seam]:
    seams = []
    firsts = len(c.legs) - len(c.joints)
    for i, joint in enumerate(c.joints):
        before = c.legs[i + firsts - 1] if i + firsts >= 1 else None
        killed = kills[i] if i < len(kills) else Moment(before.last) if before is not None else None
        if joint.step is None:
            seams.append(Seam(killed, None, 0))
            continue
        at = Moment(joint.step + 1, joint.micro) if joint.micro else Moment(joint.step)
        seams.append(Seam(killed, at, max(0, killed.step - joint.step) if killed is not None else 0))
    return seams


def _differences(c: Chain, leg: Placed) -> list[Difference]:
    one = dict(c.reference.environment) | _settings(c.reference)
    other = dict(leg.leg.environment) | _settings(leg)
    if _joint_of(c, leg) is not None:
        # A resumed leg need not seed again; whether it did is the generators' matter.
        one = {k: v for k, v in one.items() if not k.startswith("seed.")}
        other = {k: v for k, v in other.items() if not k.startswith("seed.")}
    return environment.compare(one, other)


def _settings(side: Timeline | Placed) -> dict[str, object]:
    """Return what the script set itself: seeds, and how its first loader runs."""
    found: dict[str, object] = {}
    first = side.leg if isinstance(side, Placed) else side.legs[0].leg
    if "initial_seed" in first.meta:
        found["seed.torch"] = first.meta["initial_seed"]
    for step, event in side.events():
        if event.kind == "seed" and event.step == 0 and step == event.step:
            found[f"seed.{event.data.get('generator')}"] = event.data.get("seed")
        if event.kind == "loader-started" and "loader.workers" not in found:
            found |= {f"loader.{key}": event.data.get(key) for key in _LOADER_SETTINGS}
    return found


def _with_trails(verdict: Verdict, trails: Trails) -> Verdict:
    return msgspec.structs.replace(verdict, trails=trails)
