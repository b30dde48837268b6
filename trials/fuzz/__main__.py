"""Run fuzzing campaigns from the command line."""

import argparse
import sys

from trials.fuzz import campaign
from trials.fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trials.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"one of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if surplus := set(options.targets) - TARGETS.keys():
        parser.error(f"there is no target {', '.join(sorted(surplus))}")
    broken = False
    for name in options.targets or TARGETS:
        findings = campaign(TARGETS[name], options.cases, options.seed)
        print(findings, flush=True)
        for report in findings.found:
            print(f"---\n{report}", flush=True)
        broken |= bool(findings.found)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
