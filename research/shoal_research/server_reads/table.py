"""The table of docs/privacy.md, made from the kept figures."""

from __future__ import annotations

import json

import numpy as np

from shoal_research.server_reads.measure import CLUSTERS, FILE

PAGE = FILE.parents[3] / "docs" / "privacy.md"
BEGIN = "<!-- made by python -m shoal_research.server_reads -->"
END = "<!-- end of what a server reads -->"


def table() -> str:
    """Return the shares of rows that are read exactly, the mean of the seeds and the largest, by case and clusters."""
    figures = json.loads(FILE.read_text())
    heads = " | ".join(f"K = {clusters}" for clusters in CLUSTERS)
    lines = [f"| rows read exactly | {heads} | taken for read, wrong |", f"|---|{'---:|' * (len(CLUSTERS) + 1)}"]
    for case, by_clusters in figures.items():
        cells = []
        for clusters in CLUSTERS:
            exact = [100 * view["exact"] for view in by_clusters[str(clusters)]]
            cells.append(f"{np.mean(exact):.1f} % (up to {max(exact):.1f})")
        views = [view for views in by_clusters.values() for view in views]
        cells.append(f"{100 * np.mean([view['wrong'] / view['rows'] for view in views]):.1f} %")
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page_with_table(page: str) -> str:
    """Return the text of the page with the table between the marks made again."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"
