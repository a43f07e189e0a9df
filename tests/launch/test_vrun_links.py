"""The options of vrun for links between hosts: what they take, and what becomes of them. Needs no rights."""

import pytest

from vccl.launch import links, network
from vccl.launch import vrun as command
from vccl.launch.links import Link


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("1gbit", 10**9),
        ("2.5Gbit", 2_500_000_000),
        ("100 mbit", 10**8),
        ("1kbit", 1000),
        ("1000gbit", 10**12),
    ],
)
def test_bandwidths(text, bits):
    assert links.bandwidth(text) == bits


@pytest.mark.parametrize(("text", "us"), [("1ms", 1000), ("50us", 50), ("1.5ms", 1500), ("2s", 2_000_000)])
def test_latencies(text, us):
    assert links.latency(text) == us


@pytest.mark.parametrize(("text", "percent"), [("0.1%", 0.1), ("5%", 5), ("99.9 %", 99.9)])
def test_losses(text, percent):
    assert links.loss(text) == percent


@pytest.mark.parametrize(
    ("option", "wrong", "word"),
    [
        *(
            ("bandwidth", text, "no bandwidth")
            for text in (
                "0",
                "1",
                "0gbit",
                "1gb",
                "1GB",
                "-1gbit",
                "gbit",
                "inf",
                "1e3gbit",
                "2000gbit",
                "\u0661gbit",
            )
        ),
        *(("latency", text, "no latency") for text in ("0", "0ms", "5", "1m", "-1ms", "100s", "0.1us")),
        *(("loss", text, "no loss") for text in ("0", "0%", "100%", "0.1", "-1%", "half")),
    ],
)
def test_what_is_no_value(capsys, option, wrong, word):
    with pytest.raises(SystemExit):
        command.parse(["--hosts", "2", "--netns", f"--link-{option}={wrong}", "script.py"])
    assert f"argument --link-{option}: {wrong!r} is {word}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["--hosts", "2", "--link-bandwidth", "1gbit"], "--link-bandwidth needs --netns"),
        (["--hosts", "2", "--link-latency", "1ms"], "--link-latency needs --netns"),
        (["--link-loss", "1%"], "--link-loss needs --netns"),
        (["--netns"], "--netns needs --hosts with 2 or more"),
        (["--netns", "--nnodes", "2"], "--netns needs --hosts"),
        (["--netns", "--hosts", "2", "--rdzv-endpoint", "a:1"], "--rdzv-endpoint does not go with --hosts"),
    ],
)
def test_what_does_not_go_together(capsys, line, words):
    with pytest.raises(SystemExit):
        command.parse([*line, "script.py"])
    assert words in capsys.readouterr().err


def test_the_link_of_a_command_line():
    line = [
        "--hosts",
        "3",
        "--netns",
        "--link-bandwidth",
        "10gbit",
        "--link-latency",
        "1ms",
        "script.py",
        "--netns",
    ]
    args = command.parse(line)
    assert args.link == Link(10**10, 1000, None) and args.training_script_args == ["--netns"]
    assert command.parse(["script.py"]).link == Link()


def test_commands_of_tc():
    assert network.emulation("eth0", Link()) == []
    # A link of 1 Gbit/s sends 125,000 bytes in a millisecond.
    limited = "tbf rate 1000000000bit burst 125000b limit 6375000b"
    assert network.shaping("host3", 10**9, "root") == [f"qdisc add dev host3 root {limited}"]
    assert network.emulation("eth0", Link(10**9)) == [f"qdisc add dev eth0 root {limited}"]
    assert network.emulation("eth0", Link(10**9, 1500, 0.1)) == [
        "qdisc add dev eth0 root handle 1: netem limit 100000 delay 1500us loss 0.1%",
        f"qdisc add dev eth0 parent 1: {limited}",
    ]
    assert network.emulation("eth0", Link(loss=2.0)) == [
        "qdisc add dev eth0 root handle 1: netem limit 100000 loss 2%"
    ]
    assert "burst 16384b limit 32768b" in network.shaping("eth0", 1000, "root")[0]


def test_hosts_are_sorted_as_they_are_numbered():
    addresses = [network.address_of_host(host) for host in range(network.MOST_HOSTS)]
    assert addresses == sorted(set(addresses))


def test_programs_that_are_missing(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(network, "_SYSTEM_PROGRAMS", "/nowhere")
    with pytest.raises(
        network.NetworkError, match=r"needs the program ip of iproute2 \(apt-get install iproute2\)"
    ):
        network._program("ip")


def test_too_many_hosts():
    with pytest.raises(network.NetworkError, match=f"has addresses for {network.MOST_HOSTS} hosts"):
        network.Network(network.MOST_HOSTS + 1, Link())


def test_options_are_in_the_help(capsys):
    with pytest.raises(SystemExit):
        command.parse(["--help"])
    text = capsys.readouterr().out
    assert all(option in text for option in ("--netns", "--link-bandwidth", "--link-latency", "--link-loss"))
    assert "0.1%" in text and "--parent" not in text
