"""Chapter: a group with its tables and figures, ready to be written in any format."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from testdg.report.page.figures import Picture, group_pictures
from testdg.report.page.groups import Group
from testdg.report.page.runs import Runs
from testdg.report.page.sheets import group_sheets, published_sheets
from testdg.report.table import Table


@dataclass(frozen=True)
class Chapter:
    """What a report says about one group."""

    name: str
    """Stands in anchors and in the names of files."""
    group: Group
    sheets: Sequence[Table]
    published: Sequence[Table]
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Content:
    """All that a report says."""

    title: str
    runs: Runs
    chapters: Sequence[Chapter]

    @property
    def groups(self) -> list[Group]:
        """The groups of all chapters."""
        return [chapter.group for chapter in self.chapters]


def make_chapter(group: Group, number: int) -> Chapter:
    """Make the tables and figures of a group."""
    name = f"{number}-{re.sub(r'[^a-z0-9]+', '-', group.title.lower()).strip('-')[:60]}"
    sheets = group_sheets(group)
    return Chapter(name, group, sheets, published_sheets(group), group_pictures(group, sheets, name))
