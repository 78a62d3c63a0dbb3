"""Class-data sharing for the local Kafka: the JVM's parsed classes, kept between runs. Halves the broker's start.

Must not know Kafka. The first run writes the archive while it ends (3.5 s more, once), later runs map it. A JVM
refuses, silently, an archive that was not made by itself with the same jars, so a wrong one costs time only.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from local.jars import KafkaJars
from local.java import Java


@dataclass(frozen=True)
class ClassArchive:
    """Where the archive is kept, and where a run that makes it puts it first."""

    path: Path
    draft: Path

    @classmethod
    def of(cls, *, java: Java, jars: KafkaJars, directory: Path) -> "ClassArchive | None":
        """The archive for this Java and these jars; None when the jars are not ours to keep things beside."""
        if jars.archives is None:
            return None
        digest = hashlib.sha256(f"{java.path.resolve()}\n{java.version}".encode()).hexdigest()[:16]
        return cls(path=jars.archives / f"{digest}.jsa", draft=directory / "classes.jsa")

    def use(self) -> list[str]:
        """JVM options that map the archive; none when there is no archive yet."""
        return [f"-XX:SharedArchiveFile={self.path}"] if self.path.exists() else []

    def use_or_make(self) -> list[str]:
        """JVM options that map the archive, or make a draft of it when the JVM ends in order."""
        return self.use() or [f"-XX:ArchiveClassesAtExit={self.draft}"]

    def publish(self) -> None:
        """Keep a draft that a JVM left when it ended in order; a full disk costs the next start's time only."""
        if not self.draft.exists():
            return
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".partial-", dir=self.path.parent) as holder:
                copy = Path(holder) / self.path.name
                shutil.copyfile(self.draft, copy)
                os.replace(copy, self.path)
        self.draft.unlink()
