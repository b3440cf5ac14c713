"""A study: methods over seeds, an ablation, and a page of it all: `python examples/study.py [IMAGES]`.

The same on the command line: `testdg bench`, `testdg ablate components`, `testdg report runs`.
"""

import sys
from pathlib import Path

from testdg.report.bench import bench_text
from testdg.report.page import write_report
from testdg.studies import Failed, Grid, Local, bench, expand, summarise
from testdg.studies.ablations import find_ablation

images = int([*sys.argv, 100][1])
out = Path("study")
stream = {"benchmark": "digits-c", "images": images, "domains": ["fog", "contrast"]}


def main() -> None:
    """Run everything; what is complete already is read back."""
    compared = Grid({**stream, "method": ["tent", "testdg_aligned"], "seeds": [0, 1]})
    ablated = find_ablation("components").grid(stream, {})
    for grid in (compared, ablated):
        cells = expand(grid)  # Source is added, once for each stream
        ends = bench(cells, out / "runs", engine=Local(1))
        for end in ends:
            if isinstance(end, Failed):
                print(f"{cells[end.number]} failed: {end.sentence}")
        print(bench_text(summarise(cells, ends)), "\n")
    report = write_report([out / "runs"], out / "report")
    print(f"{len(report.files)} files in {out / 'report'}: open report.html")


if __name__ == "__main__":  # runs may be processes of their own
    main()
