"""What a run was made of: code, data, partition and encoder, for its report and for the card of its model."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.errors import DataError
from shoal.data.sets.prepared import read_manifest
from shoal.engine.store.embedded import embedded_from
from shoal.engine.store.lineage import DataVersion, PartitionVersion
from shoal.engine.store.run_folder import RunFolder


@dataclass(frozen=True)
class LineageRow:
    """One row of a run's lineage, as its report shows it.

    Attributes:
        what: what the row is about: data, code and so on.
        name: its name.
        link: its address for a browser; may be empty.
        digest: tells it apart from others; may be empty.
    """

    what: str
    name: str
    link: str = ""
    digest: str = ""


def sources_of(run: RunFolder) -> list[LineageRow]:
    """Return commit, code, data, partition and encoder of a run; of embedded images also these and their encoder."""
    lineage = run.lineage()
    rows = []
    if commit := lineage.git.in_words():
        rows.append(LineageRow("commit", commit))
    rows.append(LineageRow("Shoal", lineage.shoal.in_words(), "", f"sha256 {lineage.shoal.sha256}"))
    rows.append(data_row("data", run, lineage.data, lineage.data.name))
    rows += embedded_rows(run)
    rows.append(data_row("partition", run, lineage.partition, run.folder_of("partition").name))
    if encoder := lineage.encoder:
        rows.append(LineageRow("encoder", encoder.in_words(), "", f"sha256 {encoder.sha256}"))
    return rows


def embedded_rows(run: RunFolder) -> list[LineageRow]:
    """Return the rows of the images and the encoder that a set of vectors was made of; none for any other set."""
    try:
        origin = embedded_from(read_manifest(run.folder_of("data")))
    except DataError:  # the data are not here
        return []
    if origin is None:
        return []
    encoder = origin.encoder
    return [
        LineageRow("images", origin.images, "", f"sha256 {origin.digest}"),
        LineageRow("encoder", f"{encoder.in_words()}; on {origin.device}", "", f"sha256 {encoder.sha256}"),
    ]


def data_row(what: str, run: RunFolder, version: DataVersion | PartitionVersion, name: str) -> LineageRow:
    """Return the row of the data set (`data`) or of the partition (`partition`), with a link where it is here."""
    folder = run.folder_of(what)
    link = ""
    if folder.is_absolute() and folder.is_dir():
        link = folder.as_uri()
    return LineageRow(what, name, link, f"sha256 {version.digest}, DVC {version.dvc}")
