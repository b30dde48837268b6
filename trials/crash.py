"""Kill a run at random moments, resume it, and compare the final bits with those of a run that nobody disturbed.

    python -m trials.crash [--kills 50] [--seed 0] [--method fedapa]

Every other kill comes at a random time; the rest come at a random file operation of the run, so that many of them
fall into the middle of a checkpoint. Some runs are killed again while they resume. Half of the kills take the whole
process group with them, half the parent alone: then its workers have to go by themselves.
"""

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fedgraft as fg
from fedgraft.base.errors import UserError

FILE_OPERATIONS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}
PATIENCE = 60.0  # seconds that a run of a second may take, or its workers to go, before the trial fails
MOMENTS = ("received", "trained", "participants", "refused", "bytes_up", "bytes_down", "loss", "round")


@dataclass(frozen=True)
class Kill:
    """When a run dies: after some seconds, or as it is about to do its n-th file operation."""

    seconds: float | None
    operation: int | None
    group: bool

    def __str__(self) -> str:
        when = f"after {self.seconds:.3f} s" if self.seconds is not None else f"at file operation {self.operation}"
        return f"{when}, {'the group' if self.group else 'the parent alone'}"


@dataclass
class Story:
    """One run that was killed, perhaps more than once, and what became of it."""

    kills: list[Kill]
    began_again: bool = False
    leftovers: int = 0
    difference: str | None = None


def settings(method: str) -> dict[str, Any]:
    """A run on digits of about a second, with a checkpoint after every round."""
    return {
        "method": method, "dataset": "digits", "clients": 4, "partition": "iid", "rounds": 8, "epochs": 1,
        "batch_size": 64, "checkpoint_every": 1, "participation": "0.75", "optimizer_state": "kept",
    }  # fmt: skip


def campaign(kills: int, seed: int, method: str = "fedapa", *, tell: Callable[[str], None] = print) -> list[Story]:
    """Disturb ``kills`` times and return every story; one whose ``difference`` is not None is a failure."""
    rng, stories = random.Random(seed), list[Story]()
    with TemporaryDirectory(prefix="fedgraft-crash-") as room:
        whole = Path(room) / "whole"
        _started(method, whole, 1)  # warm: the first run of a process pays for imports
        whole = Path(room) / "undisturbed"
        before = time.perf_counter()
        _wait(_forked(lambda: _started(method, whole, 2)))
        seconds = time.perf_counter() - before
        operations = _operations(method, Path(room) / "counted")
        tell(f"the undisturbed run takes {seconds:.2f} s and {operations} file operations")
        left = kills
        while left:
            torn = Path(room) / f"torn-{kills - left}"
            plan = [_kill(rng, seconds, operations) for _ in range(min(left, rng.choice([1, 1, 1, 2])))]
            left -= len(plan)
            stories.append(story := _tear(rng, method, torn, plan))
            story.difference = difference(whole, torn)
            verdict = story.difference or ("the same bits" + (", begun again" if story.began_again else ""))
            tell(f"{'; then '.join(map(str, plan))}: {verdict}")
    return stories


def difference(one: Path, two: Path) -> str | None:
    """Say in what two finished runs differ, or nothing; seconds may."""
    for run in (one, two):
        if not (run / "result.json").exists():
            return f"{run.name} did not finish"
    newest = max(p.name for p in (one / "checkpoints").glob("round-*"))
    files = [f"checkpoints/{newest}/{part}.safetensors" for part in ("server", "clients")]
    for file in (*files, "observed.safetensors"):
        if not (two / file).exists() or (one / file).read_bytes() != (two / file).read_bytes():
            return f"{file} differs"
    for reader in (_result, _metrics):
        if reader(one) != reader(two):
            return f"the records differ ({reader.__name__.strip('_')})"
    return None


def _result(run: Path) -> list[dict[str, Any]]:
    return [_timeless(record) for record in json.loads((run / "result.json").read_text())["rounds"]]


def _metrics(run: Path) -> list[dict[str, Any]]:
    return [_timeless(json.loads(line)) for line in (run / "metrics.jsonl").read_text().splitlines()]


def _timeless(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record.get(name) for name in MOMENTS}


def _kill(rng: random.Random, seconds: float, operations: int) -> Kill:
    group = rng.random() < 0.5
    if rng.random() < 0.5:
        return Kill(rng.uniform(0, seconds), None, group)
    return Kill(None, rng.randint(1, operations), group)


def _tear(rng: random.Random, method: str, place: Path, kills: list[Kill]) -> Story:
    """Start a run, kill it and what resumes it, and let the last one finish."""
    story = Story(kills)
    for kill in [*kills, None]:
        workers = rng.choice([1, 2])
        group = _forked(lambda: _go_on(method, place, workers), kill)  # noqa: B023
        if kill is None:
            _wait(group)
            continue
        if kill.seconds is not None:
            time.sleep(kill.seconds)
            _signal(group, kill)
        story.leftovers += _gone(group)
        if place.exists() and not (place / "config.toml").exists():
            story.began_again = True
    return story


def _go_on(method: str, place: Path, workers: int) -> None:
    """Start the run, resume it, or find that it is complete: what its owner would do."""
    if (place / "result.json").exists():
        return
    if (place / "config.toml").exists():
        fg.resume(place, workers=workers)
    else:
        _started(method, place, workers)


def _started(method: str, place: Path, workers: int) -> None:
    fg.run(**settings(method), workers=workers, out=place)


def _forked(work: Callable[[], object], kill: Kill | None = None) -> int:
    """Do ``work`` in a process group of its own; return its leader."""
    if leader := os.fork():
        return leader
    code = 1
    try:
        os.setsid()
        if kill is not None and kill.operation is not None:
            _die_at(kill.operation, kill)
        work()
        code = 0
    except UserError as error:
        print(f"refused: {error}", file=sys.stderr)
    except BaseException as error:
        print(f"raised: {error!r}", file=sys.stderr)
    finally:
        os._exit(code)


def _die_at(operation: int, kill: Kill) -> None:
    """Let this process die as it begins its n-th file operation."""
    done, leader = 0, os.getpid()

    def count(event: str, _: tuple[object, ...]) -> None:
        nonlocal done
        if event in FILE_OPERATIONS and os.getpid() == leader:
            done += 1
            if done == operation:
                _signal(leader, kill)

    sys.addaudithook(count)


def _operations(method: str, place: Path) -> int:
    """Count the file operations of an undisturbed run."""
    reader, writer = os.pipe()

    def work() -> None:
        done, leader = 0, os.getpid()

        def count(event: str, _: tuple[object, ...]) -> None:
            nonlocal done
            done += event in FILE_OPERATIONS and os.getpid() == leader

        sys.addaudithook(count)
        _started(method, place, 2)
        os.write(writer, str(done).encode())

    _wait(_forked(work))
    os.close(writer)
    with os.fdopen(reader) as stream:
        return int(stream.read())


def _signal(leader: int, kill: Kill) -> None:
    with suppress(ProcessLookupError):  # it may have finished
        (os.killpg if kill.group else os.kill)(leader, signal.SIGKILL)


def _wait(leader: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while os.waitpid(leader, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.killpg(leader, signal.SIGKILL)
            os.waitpid(leader, 0)
            raise TimeoutError("a run of a second took a minute")
        time.sleep(0.005)


def _gone(leader: int) -> int:
    """Wait for a process and everybody of its session; return how many did not go by themselves."""
    _wait(leader)
    deadline = time.monotonic() + 10
    while members := _session(leader):
        if time.monotonic() > deadline:
            for pid in members:
                os.kill(pid, signal.SIGKILL)
            return len(members)
        time.sleep(0.005)
    return 0


def _session(leader: int) -> list[int]:
    """The live processes of a session."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(session) == leader and state not in "ZX":
                members.append(int(entry.name))
    return members


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trials.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", default="fedapa")
    options = parser.parse_args()
    started = time.perf_counter()
    stories = campaign(options.kills, options.seed, options.method, tell=lambda line: print(line, flush=True))
    wrong = [story for story in stories if story.difference or story.leftovers]
    print(
        f"{sum(len(s.kills) for s in stories)} kills in {len(stories)} runs, {len(wrong)} of which went wrong, "
        f"{sum(s.began_again for s in stories)} begun again, {sum(s.leftovers for s in stories)} processes left over, "
        f"seed {options.seed}, {time.perf_counter() - started:.0f} s"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
