"""Try attacks and print what happened as rows of a table; exit code 1 if one of them did harm."""

import argparse
import sys

import torch

from trials.attack import attacks, carry_out


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trials.attack")
    parser.add_argument("names", nargs="*", metavar="NAME", help="attacks whose names hold one of these words")
    parser.add_argument("--times", type=int, default=1, help="how often to try each, with seeds from --seed on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="say what there is, and stop")
    given = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [one for one in attacks().values() if not given.names or any(word in one.name for word in given.names)]
    if given.list or not chosen:
        print("\n".join(one.name for one in chosen) or "no attack has such a name")
        return 0 if chosen else 2
    print("| attack | tried | what has to hold | what happened |\n|---|---|---|---|")
    breaches = []
    for one in chosen:
        outcome = carry_out(one, range(given.seed, given.seed + given.times))
        print(outcome.row(), flush=True)
        breaches += outcome.breaches
    print("\n".join(breaches), file=sys.stderr)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
