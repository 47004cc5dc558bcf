"""`--set KIND.KEY=VALUE`: what it changes, and what each mistake is told."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel import hardware
from perfmodel.errors import HardwareError
from perfmodel.hardware import with_settings
from perfmodel.hardware.catalogue import original


def test_figures_of_a_node_and_its_parts() -> None:
    node = with_settings(
        hardware.node("h100-sxm"),
        ["device.hbm_gb_per_s=3000", "node.gpus=4", "host.cores = 8", "nic.gb_per_s=25"],
    )
    assert (node.gpus, node.host.cores) == (4, 8)
    assert node.device.hbm_gb_per_s == 3000
    assert node.device.fp16_tflop_per_s == hardware.device("h100-sxm").fp16_tflop_per_s
    assert node.nic is not None
    assert node.nic.gb_per_s == 25
    assert node.device.name == "h100-sxm (changed)"
    assert node.name.startswith("h100-sxm (device.hbm_gb_per_s=3000, node.gpus=4")
    assert node.device.sources["hbm_gb_per_s"] == "given in --set: device"
    assert node.device.sources["sm_count"] == hardware.device("h100-sxm").sources["sm_count"]


def test_a_device_alone_and_a_cluster() -> None:
    device = with_settings(hardware.device("mi300x"), ["device.hbm_bytes=100e9"])
    assert device.hbm_bytes == 100_000_000_000
    assert device.aliases == ()
    cluster = with_settings(
        hardware.cluster("dgx-h100", 4), ["device.sm_count=100", "node.gpus=2", "cluster.nodes=3"]
    )
    assert (cluster.node.device.sm_count, cluster.gpus) == (100, 6)


def test_parts_by_name_and_texts() -> None:
    node = with_settings(
        hardware.node("dgx-h100"), ["node.nic=connectx-8", "link.topology=mesh", "node.nics=4"]
    )
    assert node.nic == hardware.load("connectx-8")
    assert node.link is not None
    assert node.link.topology == "mesh"
    for settings in (
        ["node.nic=connectx-7", "nic.latency_us=1"],
        ["nic.latency_us=1", "node.nic=connectx-7"],
    ):
        nic = with_settings(node, settings).nic
        assert nic is not None
        assert (nic.name, nic.gb_per_s, nic.latency_us) == ("connectx-7 (changed)", 50, 1)
    whole = with_settings(hardware.node("t4"), ["node.storage=pm1743", "node.drives=2"])
    assert whole.storage == hardware.load("pm1743")


def test_the_links_of_a_device_are_its_nodes() -> None:
    node = hardware.node("dgx-h100")
    assert with_settings(node, ["device.link_gb_per_s=900"]).peer_gb_per_s == 900
    both = with_settings(node, ["device.link_gb_per_s=900", "link.gb_per_s=100"])
    assert both.peer_gb_per_s == 100
    cluster = with_settings(hardware.cluster(node, 2), ["device.link_gb_per_s=900"])
    assert cluster.node.peer_gb_per_s == 900


def test_nothing_set_is_the_same_part() -> None:
    node = hardware.node("dgx-h100")
    assert with_settings(node, []) is node


def test_every_part_survives_a_change_of_its_name() -> None:
    for part in hardware.find():
        changed = with_settings(part, [f"{hardware.kind_of(part)}.maker=me"])
        assert changed.maker == "me"
        assert hardware.figures(changed) == hardware.figures(part)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("gpus=4", "settings 'gpus=4': expected KIND.KEY=VALUE, as in device.hbm_gb"),
        ("node.gpus", "expected KIND.KEY=VALUE"),
        ("gpu.sm_count=4", "expected KIND.KEY=VALUE, .*KIND is one of device, host"),
        (
            "storage.read_iops=4",
            "settings storage: dgx-h100 has none: name one too, as in .* node.storage=NAME",
        ),
        ("cluster.nodes=4", "dgx-h100 is a node and has no cluster"),
        (
            "device.hbm=4",
            "settings: device: unknown key hbm of a device; expected: hbm_bytes",
        ),
        ("node.gpus=0", "settings: gpus: expected a whole number from 1 .*got 0"),
        ("node.gpus=two", "settings: gpus: expected a whole number from 1 .*got 'two'"),
        (
            "device.hbm_gb_per_s=3 TB/s",
            "settings: device: hbm_gb_per_s: expected .*'3 TB/s'",
        ),
        ("node.device=h900", "settings: device: unknown hardware 'h900'; nearest: "),
        ("node.device=connectx-7", "expected a device, but 'connectx-7' is a nic"),
    ],
)
def test_mistakes(setting: str, said: str) -> None:
    with pytest.raises(HardwareError, match=said) as caught:
        with_settings(hardware.node("dgx-h100"), [setting])
    assert "\n" not in str(caught.value)


@given(value=st.floats(1e-3, 1e6))
def test_a_rate_is_taken_as_given(value: float) -> None:
    device = with_settings(hardware.device("t4"), [f"device.hbm_gb_per_s={value!r}"])
    assert device.hbm_gb_per_s == value


@given(setting=st.text(max_size=40))
def test_any_text_is_a_setting_or_an_error(setting: str) -> None:
    with contextlib.suppress(HardwareError):
        with_settings(hardware.node("t4"), [setting])


def test_a_board_with_other_figures_is_made_from_the_one_with_its_memory() -> None:
    for name in ("h200-sxm", "h100-sxm", "a100-sxm-80gb"):
        board = hardware.device(name)
        faster = with_settings(board, [f"device.hbm_gb_per_s={1.1 * board.hbm_gb_per_s}"])
        assert original(faster) == board
