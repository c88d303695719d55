"""Steps that a leg took again after a crash, compared with the leg that was interrupted."""

from collections.abc import Sequence

from bitproof import environment
from bitproof.compare.align import Joint
from bitproof.compare.causes import explain
from bitproof.compare.causes.case import Case
from bitproof.compare.divergence import walk
from bitproof.compare.timeline import Placed, Timeline
from bitproof.compare.verdict import Moment, Seam, Steps, Trails, Verdict


def judge_redone(earlier: Sequence[Placed], leg: Placed) -> Verdict | None:
    """Judge a resume by the steps that both the interrupted legs and the resumed one took.

    Where the legs join is known here, and not looked up. Of several interrupted legs the one that got farthest counts.

    Args:
        earlier: one rank's earlier legs, in order.
        leg: the resumed leg; it may still be running.

    Returns:
        The verdict, of which ``steps`` counts those that were redone; None if there are none.

    Raises:
        IncomparableError: they train different models.
    """
    if not earlier:
        return None
    farthest = max(range(len(earlier)), key=lambda i: (earlier[i].last, i))
    line = Timeline(tuple(earlier[: farthest + 1]))
    result = walk(line, leg, upto=line.last)
    if result.compared == 0:
        return None
    differences = environment.compare(line.legs[-1].leg.environment, leg.leg.environment)
    causes = []
    if result.divergence is not None:
        case = Case(
            reference=line,
            leg=leg,
            divergence=result.divergence,
            joint=Joint(leg.offset, leg.micro, "state"),
            interrupted=line.legs,
            environment=tuple(differences),
            saved=result.saved,
        )
        causes = explain(case)
    resumed_at = Moment(leg.offset + 1, leg.micro) if leg.micro else Moment(leg.offset)
    return Verdict(
        verdict="identical" if result.divergence is None else "diverged",
        steps=Steps(line.last, result.compared, result.identical),
        seams=[Seam(Moment(line.last), resumed_at, result.compared)],
        divergence=result.divergence,
        causes=causes,
        environment=differences,
        unseen=list(result.unseen),
        trails=Trails(
            reference=str(line.legs[-1].leg.path),
            interrupted=[str(p.leg.path) for p in earlier],
            resumed=[str(leg.leg.path)],
        ),
    )
