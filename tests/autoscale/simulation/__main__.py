"""Print what each rule does on simulated loads: `python -m tests.autoscale.simulation --only bursts`."""

from __future__ import annotations

import argparse
import sys
import time

from tests.autoscale.simulation.judge import ALL, HINDSIGHT, OURS, RULES, SETS, compare
from tests.autoscale.simulation.ours import Ours
from tests.autoscale.simulation.simulate import simulate


def main() -> None:
    """Print a line per load and rule, or what each of our passes sees and wants."""
    parser = argparse.ArgumentParser(prog="python -m tests.autoscale.simulation", description=__doc__)
    add = parser.add_argument
    add("--set", choices=[*SETS], help="only the loads of one set")
    add("--only", nargs="+", choices=[*ALL], metavar="LOAD", help=", ".join(ALL))
    add("--rules", nargs="+", choices=[*RULES], default=[OURS], metavar="RULE", help=", ".join(RULES))
    add("--long", action="store_true", help="the loads of the benchmark, not the short ones of the tests")
    add("--log", action="store_true", help="print each of our passes instead")
    asked = parser.parse_args()
    for name in asked.only or (SETS[asked.set] if asked.set else ALL):
        load = ALL[name](short=not asked.long)
        sys.stdout.write(f"{name}\n")
        if asked.log:
            simulate(load, Ours(log=lambda line: sys.stdout.write(f"  {line}\n")))
            continue
        started = time.process_time()
        for one in compare(load, asked.rules):
            its, passes = one.outcome, len(one.outcome.at)
            sys.stdout.write(
                f"  {one.rule:22} within {its.within():7.2%}  worst job {its.worst_job():7.2%}  "
                f"x fewest {one.ratio:6.3f}  requests/h {its.requests_per_hour():6.1f}  "
                f"longest {its.longest():7.1f} s  most {its.ready.max():7,.0f}  passes {passes}\n"
            )
            if one.rule == HINDSIGHT:
                sys.stdout.write(f"  {time.process_time() - started:.1f} s of CPU\n")


if __name__ == "__main__":
    main()
