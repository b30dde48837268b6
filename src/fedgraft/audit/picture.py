"""The audit in a terminal: a table of clients, and sentences about all of them."""

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedgraft.audit.auditing import Audit
from fedgraft.audit.verdict import Rate, Verdict


def picture(audit: Audit) -> RenderableType:
    """All of it."""
    return Group(_table(audit), Text("\n".join(sentences(audit))))


def _table(audit: Audit) -> Table:
    table = Table(title=Text(f"what the server could learn: {audit.run.label}"), box=box.SIMPLE, pad_edge=False)
    table.add_column("client")
    for attack in audit.names:
        table.add_column(f"{attack}: AUC, 95 %", justify="right")
        table.add_column("TPR at 1 % FPR", justify="right")
    if audit.guesses:
        table.add_column("labels: error", justify="right")
        table.add_column("prior", justify="right")
    for client in sorted(audit.attacks.keys() | audit.guesses.keys()):
        cells = [cell for attack in audit.names for cell in _cells(audit.verdict(attack, client))]
        guess = audit.guesses.get(client)
        cells += ["–", "–"] if guess is None else [f"{guess.error:.2f}", f"{guess.prior:.2f}"]
        table.add_row(Text(audit.run.spec.called(client)), *cells[: len(table.columns) - 1])
    total = [cell for attack in audit.names for cell in _cells(audit.verdict(attack))]
    total += [] if audit.guessed is None else [f"{each:.2f}" for each in audit.guessed]
    table.add_row("all", *total, style="bold")
    return table


def _cells(verdict: Verdict | None) -> tuple[str, str]:
    return ("–", "–") if verdict is None else (_rate(verdict.area), _rate(verdict.caught))


def _rate(rate: Rate) -> str:
    """A rate and its interval; two attacks have to fit into eighty columns."""
    low, high = (f"{end:.2f}".removeprefix("0") for end in rate.interval)
    return f"{rate.value:.2f} {low}–{high}"


def sentences(audit: Audit) -> Iterator[str]:
    """What the attacks prove, and what the attacker was given."""
    promised = "the run promises none" if audit.epsilon is None else f"the run's is {audit.epsilon:.3g}"
    for attack in audit.names:
        if (bound := audit.bound(attack)) is not None:
            yield (
                f"{attack}: epsilon is at least {bound.epsilon:.2f}, at a confidence of 95 % "
                f"(delta {audit.delta:g}); {promised}."
            )
    if not audit.names:
        yield "No membership attack: the clients send nothing that is a network."
    elif audit.view == "extractor":
        yield "The clients send the extractor alone: the attacker fitted a head on test samples of other clients."
    if audit.guessed is None:
        yield "No attack on labels: there are too few clients, or shadows, to learn from."
    yield from audit.notes
    yield "An attack that finds nothing proves nothing: a better one may."
