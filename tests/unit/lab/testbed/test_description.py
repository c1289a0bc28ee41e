from pathlib import Path

import pytest

from tpiedge.errors import UserError
from tpiedge.lab.testbed.description import (
    Description,
    Device,
    Link,
    NetworkRouter,
    format_part,
    format_rate,
    format_time,
    load_scenario,
    parse_description,
    parse_part,
    parse_rate,
    parse_time,
    shipped_scenarios,
)

WHOLE = """
about = "a home"
[defaults]
latency = "1 ms"
rate = "80 Mbit/s"
up_rate = "8 Mbit/s"
memory = "2 GB"
[[router]]
name = "attic"
uplink = "core"
loss = "2 %"
[[router]]
name = "core"
[[device]]
name = "laptop"
uplink = "attic"
down_latency = "3 ms"
rate = "16 Mbit/s"
cpus = 1.5
memory = "4 GB"
swap = "1 GiB"
[[device]]
name = "phone"
uplink = "core"
jitter = "0.5 ms"
"""


def test_full_description_is_parsed() -> None:
    megabyte = 1e6
    assert parse_description(WHOLE, "f") == Description(
        "a home",
        (
            NetworkRouter(
                "attic", "core", Link(0.001, 0.0, 0.02, megabyte), Link(0.001, 0.0, 0.02, 10 * megabyte)
            ),
            NetworkRouter("core", None, Link(), Link()),
        ),
        (
            Device(
                "laptop",
                "attic",
                Link(0.001, 0.0, 0.0, 2 * megabyte),
                Link(0.003, 0.0, 0.0, 2 * megabyte),
                1.5,
                4_000_000_000,
                1 << 30,
            ),
            Device(
                "phone",
                "core",
                Link(0.001, 0.0005, 0.0, megabyte),
                Link(0.001, 0.0005, 0.0, 10 * megabyte),
                None,
                2_000_000_000,
            ),
        ),
    )


CORE = '[[router]]\nname = "core"\n'
ONE = f'{CORE}[[device]]\nname = "a"\nuplink = "core"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[", "is not valid TOML"),
        ("about = 1\n" + ONE, "about must be a text"),
        (ONE + "[zebra]", "there is no table or key 'zebra'"),
        ("defaults = 3\n" + ONE, "defaults must be one table"),
        ("router = 3\n", "router must be tables: [[router]]"),
        ("[[router]]\n", "[[router]] number 1: it has no name"),
        (CORE, "it has no device"),
        ('[[device]]\nname = "a"\nuplink = "core"\n', "it has no router"),
        (CORE + '[[device]]\nname = "a"\n', "[[device]] a: it has no uplink"),
        (ONE.replace('"core"\n[[d', '"moor"\n[[d'), "[[device]] a: uplink: there is no router 'core'"),
        (ONE + '[[device]]\nname = "a"\nuplink = "core"\n', "there are two members of the name a"),
        (
            ONE + '[[router]]\nname = "b"\n',
            "exactly one router may be without uplink, the root: here core, b are",
        ),
        (ONE.replace('"core"\n[', '"core"\nuplink = "core"\n[', 1), "it leads in a circle: core -> core"),
        (
            ONE + '[[router]]\nname="x"\nuplink="y"\n[[router]]\nname="y"\nuplink="x"\n',
            "[[router]] x: uplink: it leads in a circle: x -> y -> x",
        ),
        (
            ONE.replace('"core"\n[', '"core"\nrate = "1 Mbit/s"\n[', 1),
            "[[router]] core: rate is of the link to an",
        ),
        (
            ONE + 'latencie = "1 ms"',
            "[[device]] a: there is no key 'latencie': it may have name, uplink, latency",
        ),
        (ONE + "latency = 1", "[[device]] a: latency: it has no unit"),
        (ONE + 'latency = "1 min"', "is not a time"),
        (ONE + 'latency = "11 s"', "'11 s' is out of range: at most 10 s"),
        (ONE + 'loss = "0.01"', "is not a part; write it like 1 %"),
        (ONE + '[[router]]\nname = "\\u001b[2J"', r"[[router]] '\x1b[2J': name:"),
        (ONE + 'down_loss = "91 %"', "[[device]] a: down_loss: '91 %' is out of range: 0 % to 90 %"),
        (ONE + 'rate = "300 MB/s"', "is not a rate; write it like 300 Mbit/s"),
        (ONE + 'rate = "0 Mbit/s"', "'0 Mbit/s' is out of range: 1 kbit/s to 100 Gbit/s"),
        ("[defaults]\nrate = 'x'\n" + ONE, "[defaults]: rate: 'x' is not a rate"),
        (ONE + "cpus = 0", "[[device]] a: cpus: it is out of range: 0.01 to 1024"),
        (ONE + "cpus = true", "cpus: it must be a number"),
        (ONE + "memory = 8", "memory: it has no unit: write a number"),
        (ONE + 'memory = "8 XB"', "memory: not a size: '8 XB'"),
        (ONE + 'memory = "1 MB"', "memory: '1 MB' is out of range: 16 MiB to 16 TiB"),
        (ONE + 'swap = "1 GB"', "swap: there is no limit of swap without one of memory"),
        (CORE + "".join(f'[[device]]\nname="d{n}"\nuplink="core"\n' for n in range(65)), "it is too large"),
    ],
    ids=lambda value: value[-40:].strip(),
)
def test_description_errors_are_one_line(text: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        parse_description(text, "home.toml")
    assert str(error.value).startswith("home.toml")
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_quantities_are_parsed_and_formatted() -> None:
    assert parse_time("0.25 ms") == parse_time("250us") == parse_time("250 µs") == 0.00025
    assert [format_time(value) for value in (0.00025, 0.0, 0.007, 2.0)] == ["0.25 ms", "0 ms", "7 ms", "2 s"]
    assert parse_rate("300 Mbit/s") == 37_500_000.0
    assert [format_rate(value) for value in (37_500_000.0, 1.25e8, 125.0, None)] == [
        "300 Mbit/s",
        "1 Gbit/s",
        "1 kbit/s",
        "-",
    ]
    assert parse_part("1.5%") == 0.015
    assert parse_part("100 %", greatest=1.0) == 1.0
    assert format_part(0.015) == "1.5 %"


def test_shipped_scenarios_load() -> None:
    shipped = shipped_scenarios()
    assert list(shipped) == [
        "delay-8",
        "laptops-4",
        "pair",
        "paper-8",
        "two-room-mesh",
        "weak-8",
        "wifi-home",
        "wired-lan",
    ]
    for name, path in shipped.items():
        scenario = load_scenario(name)
        assert scenario.name == name
        assert scenario.text == path.read_text()
        assert scenario.description.about


def test_scenario_name_comes_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "My Home (2).toml"
    path.write_text(ONE)
    assert load_scenario(str(path)).name == "my-home-2"
    assert load_scenario(str(path), "other").name == "other"
    with pytest.raises(UserError, match="is no name for a testbed"):
        load_scenario(str(path), "a.b")


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("nope", "there is no testbed 'nope': give a file .* or one of delay-8, laptops-4, pair"),
        ("./nope", "cannot read the testbed's file nope: No such file"),
        ("nope.toml", "cannot read the testbed's file nope.toml"),
        ("/", "cannot read the testbed's file /: Is a directory"),
        ("a/\0b", "cannot read the testbed's file"),
    ],
)
def test_missing_scenario_file_is_an_error(named: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load_scenario(named)
