"""One process of the conformance run: one backend, device and world size. Writes a line of JSON per test."""

import argparse
import importlib
import json
import os
import tempfile


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--results", type=int, required=True, help="descriptor to write results to")
    parser.add_argument("--tests", help="JSON list of names; all if not given")
    parser.add_argument("--suite", help="module:class with the tests, in place of upstream's")
    options = parser.parse_args()
    # Ranks must not inherit it: what outlives a test would keep the reader waiting.
    os.set_inheritable(options.results, False)

    import harness
    import suite

    from vccl.launch import forks

    forks.adopt_orphans()
    with tempfile.TemporaryDirectory() as folder:
        module = suite.load(options.backend, options.device, options.world, f"file://{folder}/unused")
        tests = module.DistributedTest._DistTestBase
        if options.suite:
            name, _, attribute = options.suite.partition(":")
            tests = getattr(importlib.import_module(name), attribute)
        case = harness.make_case(module, tests)
        case.setUpClass()
        selected = json.loads(options.tests) if options.tests else harness.names(case)
        with open(options.results, "w", buffering=1) as results:
            for result in harness.run(case, selected):
                results.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
