"""python -m tests.torture --engine postgres --duration 600 --seed 7."""

import argparse
import sys
import time
from typing import Any

from tests.torture.drill import Plan, report, run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture", description="Put the promises under fire."
    )
    parser.add_argument("--engine", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--duration", type=float, default=Plan.duration, help="seconds of faults")
    parser.add_argument("--seed", type=int, default=None, help="else one is made up, and printed")
    parser.add_argument("--sessions", type=int, default=Plan.sessions)
    parser.add_argument("--workers", type=int, default=Plan.workers)
    parser.add_argument("--fronts", type=int, default=Plan.fronts)
    parser.add_argument("--pace", type=float, default=Plan.pace, help="mean seconds between two faults")
    given = parser.parse_args()
    chosen: dict[str, Any] = vars(given) | {
        "seed": int(time.time()) % 100_000 if given.seed is None else given.seed
    }
    outcome = run(Plan(**chosen), lambda text: print(text, file=sys.stderr, flush=True))
    print(report(outcome), flush=True)
    return 0 if outcome.holds else 1


if __name__ == "__main__":
    sys.exit(main())
