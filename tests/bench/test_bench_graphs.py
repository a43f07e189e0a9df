"""`python -m vccl.bench graphs`."""

import pytest

from vccl.bench import cli, graphs


def test_every_case_is_measured(capsys):
    assert cli.main(["graphs", "--repeat", "2"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head == graphs.HEAD and len(rows) == len(graphs.CASES)
    for row, name in zip(rows, graphs.CASES, strict=True):
        count, found, *figures = row.split()
        assert (count, found) == (str(graphs.COUNT), name) and all(float(figure) > 0 for figure in figures)
        assert len(figures) == 3


def test_bad_arguments_are_refused(capsys):
    with pytest.raises(SystemExit):
        cli.main(["graphs", "--repeat", "0"])
    assert "at least 1" in capsys.readouterr().err
