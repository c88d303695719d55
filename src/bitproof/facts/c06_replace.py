"""C6: a checkpoint written in place is lost with the process that writes it."""

from bitproof.facts.fact import Fact, Values, Verdict, holds_if

SNIPPET = """\
import io
import os
import signal

import torch

old, new = {"weight": torch.zeros(1000)}, {"weight": torch.ones(1000)}
buffer = io.BytesIO()
torch.save(new, buffer)
content = buffer.getvalue()


def write_and_die(path, length):  # the process is killed while it writes
    child = os.fork()
    if child == 0:
        with open(path, "wb") as file:
            file.write(content[:length])
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def old_is_whole(path):
    try:
        return torch.equal(torch.load(path)["weight"], old["weight"])
    except Exception:  # torch.load says in several ways that a file is cut
        return False


in_place = renamed = 0
lengths = range(0, len(content), len(content) // 20)
for length in lengths:
    torch.save(old, "a.pt")
    write_and_die("a.pt", length)
    in_place += old_is_whole("a.pt")
    torch.save(old, "b.pt")
    write_and_die("b.pt.tmp", length)  # os.replace("b.pt.tmp", "b.pt") would come next
    renamed += old_is_whole("b.pt")
tried = len(lengths)
print(in_place, renamed, "of", tried)
"""


def _judge(v: Values) -> tuple[Verdict, str]:
    seen = (
        f"The writing process was killed at {v['tried']} places in the file. The old checkpoint was still whole {v['in_place']} times "
        f"when written in place, {v['renamed']} times with a temporary name. Power loss needs fsync too."
    )
    return holds_if(v["in_place"] == 0 and v["renamed"] == v["tried"]), seen


FACT = Fact(
    id="C6",
    title="Write beside, then rename",
    topic="checkpoints",
    difficulty=2,
    statement=(
        "Writing to a temporary name and then `os.replace` leaves the old checkpoint whole if the process dies while writing; "
        "writing to the final name does not. (Power loss also needs fsync of file and folder.)"
    ),
    snippet=SNIPPET,
    remedy=(
        "`bitproof.store.Store` writes beside, syncs, verifies and then commits. With "
        "`--kill during-save:every`, `bitproof prove` kills your script in the middle of each file that it writes."
    ),
    judge=_judge,
)
