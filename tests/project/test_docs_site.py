"""The site that MkDocs makes of the pages: every page is in it, and no link leads nowhere."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def build(folder: Path, *options: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder, *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_listed(site):
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").glob("**/*.md")}
    first, *groups = settings["nav"]
    assert {first, *(page for group in groups for pages in group.values() for page in pages)} == pages


def test_it_can_be_searched(site):
    assert "vrun" in (site / "search" / "search_index.json").read_text()


def test_links_to_sources_lead_to_the_repository(site):
    page = (site / "inside" / "torch" / "index.html").read_text()
    assert 'href="https://github.com/OWNER/vccl/blob/main/vccl/_torch_patches/' in page


def test_a_link_that_leads_nowhere_is_an_error(tmp_path):
    pages = tmp_path / "docs"
    pages.mkdir()
    (pages / "README.md").write_text("# A page\n\n[gone](gone.md)\n")
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    settings |= {"docs_dir": str(pages), "nav": ["README.md"], "hooks": [str(ROOT / ".ci/docs_site.py")]}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(settings))
    done = build(tmp_path / "site", "--config-file", tmp_path / "mkdocs.yml")
    assert done.returncode != 0 and "gone.md" in done.stderr
