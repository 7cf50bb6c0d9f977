"""A run to look at: its settings, numbers, tables and figures, and what its model says of new samples."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.engine.store.run_folder import RunError, RunFolder

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from shoal.engine.settings.run_settings import Settings
    from shoal.engine.store.lineage import Lineage
    from shoal.review.results.label_scores import LabelScores
    from shoal.review.results.result import RunResult
    from shoal.review.served.explain import Explained


def load(name: str | Path = "latest", *, unfinished: bool = False) -> Run:
    """Open a run by its folder, its name or the beginning of it; `latest` is the last one that is finished.

    Args:
        name: of the run.
        unfinished: whether `latest` may be a run that is not finished.

    Raises:
        ShoalError: none, or more than one.
    """
    return Run(RunFolder.find(str(name), unfinished=unfinished))


class Run:
    """One run, finished or not. Everything is read from its folder when it is asked for.

    Attributes:
        path: its folder.
        name: of the folder.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self.path = folder.path
        self.name = folder.name

    @property
    def state(self) -> str:
        """The state as `shoal runs` lists it: running, finished, interrupted, failed, unreadable or site."""
        from shoal.review.results.runs import list_run

        return list_run(self._folder).state

    @property
    def settings(self) -> Settings:
        """The settings it was started with; `.to_json()` gives them as dictionaries."""
        return self._folder.settings()

    @property
    def lineage(self) -> Lineage:
        """Where it comes from: data, partition, code, machine; with `model.clusters: auto` also how it was chosen."""
        return self._folder.lineage()

    @property
    def result(self) -> RunResult:
        """State, rounds, metrics, bytes and seconds."""
        from shoal.review.results.result import run_result

        return run_result(self._folder)

    @property
    def metrics(self) -> dict[str, float]:
        """The numbers of the last evaluated round, and those that judge clusters without labels."""
        from shoal.review.results.result import shown_metrics

        return shown_metrics(self.result)

    @property
    def rounds(self) -> pd.DataFrame:
        """A row a round: bytes, seconds, and metrics where it was evaluated."""
        return self._folder.table("rounds")

    @property
    def clients(self) -> pd.DataFrame:
        """A row a round and client: samples, bytes, seconds, loss."""
        return self._folder.table("clients")

    @property
    def clusters(self) -> pd.DataFrame:
        """A row a sample: client, file, label where there are any, cluster, confidence, distance.

        Of a night's run also `cluster_id`, the number that clusters keep and that pages and `explain` use.

        Raises:
            ShoalError: the run has none: it is not finished, or its method gives samples no cluster.
        """
        from shoal.review.results.clusters import read_clusters

        table = read_clusters(self._folder)
        if table is None:
            raise RunError(
                f"run {self.name} has no cluster table: it is not finished, or its method gives samples no cluster"
            )
        return table

    @property
    def figures(self) -> dict[str, Path]:
        """PNG files by name, contact sheets of clusters as clusters/cluster-00."""
        root = self._folder.figures
        return {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.rglob("*.png"))}

    @property
    def report(self) -> Path:
        """The report, one HTML page, made from what the run's folder holds now."""
        from shoal.review.pages.report import write_report

        return write_report(self._folder)

    def predict(
        self,
        source: str | Path | np.ndarray,
        *,
        on_odd: str = "as-set",
        embedding: bool = False,
    ) -> pd.DataFrame:
        """Return the clusters of new samples: a row each, with cluster, confidence and, with centres, distance.

        Args:
            source: a folder of images at any depth, an image, or of a run on vectors a table (Parquet, CSV); or an
                array: images uint8 (n, channels, height, width), grey ones also (n, height, width); vectors
                (n, features).
            on_odd: images of another size than the set's: skip, resize, or as-set: resize where the set was made so.
            embedding: also return the model's features: embedding_0, embedding_1 and so on.

        Returns:
            The table; `.attrs["skipped"]` names the files that were not used, with reasons.

        Raises:
            ShoalError: the run is not finished or has no clusters of samples, or nothing can be used.
        """
        import numpy as np

        from shoal.review.served.predict import Predictor, predict

        if isinstance(source, np.ndarray):
            return Predictor(self._folder, embedding).assign_array(source)
        predicted = predict(self._folder, Path(source), on_odd, embedding)
        predicted.table.attrs["skipped"] = [{"file": each.path, "reason": each.reason} for each in predicted.skipped]
        return predicted.table

    def score(self, labels: str | Path) -> LabelScores:
        """Return scores of the clusters by labels that came later: a CSV with the columns file and label.

        Raises:
            ShoalError: a file is not the run's, or has two labels.
        """
        from shoal.review.results.label_scores import label_scores

        return label_scores(self._folder, Path(labels))

    def explain(self, cluster: int) -> Explained:
        """Show one cluster over the clients: `.clients` and `.shown` are tables, `.draw("sheet.png")` draws images.

        Raises:
            ShoalError: the run has no such cluster, or no cluster table.
        """
        from shoal.review.served.explain import explain

        return explain(self._folder, cluster)

    def __repr__(self) -> str:
        return f"<Run {self.name}: {self.state}, {self._folder.status().round} rounds>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the beginning of the report."""
        from shoal.review.results.summary import summary_of

        summary = summary_of(self._folder)
        verdict = self.result.verdict
        words = "" if verdict is None else f"<br><b>{verdict.word}.</b> {html.escape(verdict.reason)}"
        cells = "".join(f"<td><b>{number.value}</b><br>{number.name}</td>" for number in summary.numbers)
        lines = "<br>".join(map(html.escape, (self.name, summary.task, summary.outcome)))
        return f"<p>{lines}{words}</p><table><tr>{cells}</tr></table>"
