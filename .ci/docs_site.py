"""A hook of MkDocs: makes links to files outside of docs/ links to the repository."""

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(\]\()([^)#:\s]+)(#[^)]*)?(\))")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Returns the page, whose links to files outside of docs/ lead to the repository.

    A link to a file that is not there stays as it is, so that MkDocs reports it.
    """
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def to_repository(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[2]))
        if (path.startswith("docs/") and not path.endswith(".py")) or not (ROOT / path).exists():
            return match[0]
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{match[1]}{config.repo_url.rstrip('/')}/{kind}/main/{path}{match[3] or ''}{match[4]}"

    return _LINK.sub(to_repository, markdown)
