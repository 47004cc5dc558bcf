"""A user's own files: what works, and what each mistake is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel import hardware
from perfmodel.errors import HardwareError

DOCS = Path(__file__).parents[2] / "docs" / "hardware.md"


def _write(folder: Path, text: str, name: str = "my.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_extends_keeps_what_is_not_given(tmp_path: Path) -> None:
    path = _write(tmp_path, 'extends = "h100-sxm"\nhbm_gb_per_s = 6000\nhbm_bytes = 192e9\n')
    device, h100 = hardware.device(path), hardware.device("h100-sxm")
    assert (device.name, device.hbm_gb_per_s, device.hbm_bytes) == ("my", 6000, 192_000_000_000)
    assert device.bf16_tflop_per_s == h100.bf16_tflop_per_s
    assert device.aliases == ()
    assert device.sources["bf16_tflop_per_s"] == h100.sources["bf16_tflop_per_s"]
    assert device.sources["hbm_gb_per_s"] == f"given in {path}"


def test_relative_path_and_chain_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path, 'extends = "mi300x"\ntdp_w = 600\n[source]\ntdp_w = "capped"\n', "base.toml")
    _write(tmp_path, 'extends = "./base.toml"\nname = "capped-slow"\nhbm_gb_per_s = 4000\n')
    monkeypatch.chdir(tmp_path)
    device = hardware.device("./my.toml")
    assert (device.name, device.tdp_w, device.target) == ("capped-slow", 600, "rocm")
    assert device.sources["tdp_w"] == "capped"


def test_a_table_changes_a_part_of_a_node(tmp_path: Path) -> None:
    path = _write(tmp_path, 'extends = "dgx-h100"\ngpus = 4\n[device]\nhbm_gb_per_s = 4000\n')
    node = hardware.node(path)
    assert (node.gpus, node.device.hbm_gb_per_s, node.device.fp16_tflop_per_s) == (4, 4000, 989)
    assert node.device.name == "h100-sxm (changed)"
    assert node.host == hardware.host("xeon-platinum-8480c")


def test_a_users_device_brings_its_links_to_its_usual_node(tmp_path: Path) -> None:
    path = _write(tmp_path, 'extends = "h100-sxm"\nlink_gb_per_s = 900\n')
    assert hardware.node(path).peer_gb_per_s == 900


def test_a_cluster(tmp_path: Path) -> None:
    path = _write(tmp_path, 'kind = "cluster"\nnode = "dgx-h100"\nnodes = 4\n')
    cluster = hardware.load(path)
    assert isinstance(cluster, hardware.Cluster)
    assert (cluster.name, cluster.gpus) == ("my", 32)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hbm_gb_per_s = 3000", "my.toml: kind is missing: expected one of device, host"),
        ('kind = "gpu"', "my.toml: kind: expected one of device, host, .* got 'gpu'"),
        ('kind = ["gpu"]', "my.toml: kind: expected one of device, host"),
        ('kind = "nic"', "my.toml: gb_per_s is missing: expected a number .*GB/s"),
        ('extends = "h100"x', r"my.toml: not valid TOML: .*line 1, column 17"),
        (
            'extends = "h900-sxm"',
            "my.toml: extends: unknown hardware 'h900-sxm'; .*h100-sxm",
        ),
        ('extends = "no.toml"', "my.toml: extends: .*no.toml: cannot be read: No such file"),
        ('extends = "my.toml"', "extends itself, or a chain of more than"),
        ("extends = 3", "my.toml: extends: expected the name of a part or a file, got 3"),
        ('kind = "host"\nextends = "h100-sxm"', "expected a host, but 'h100-sxm' is a device"),
        (
            'extends = "h100-sxm"\nhbm_tb_per_s = 3',
            "my.toml: unknown key hbm_tb_per_s of a device; expected: hbm_gb_per_s",
        ),
        (
            'extends = "h100-sxm"\nhbm_gb_per_s = "3 TB/s"',
            r"my.toml: hbm_gb_per_s: expected a number from 0.001 to 1e\+06, GB/s .*got '3 TB/s'",
        ),
        ('extends = "h100-sxm"\nhbm_gb_per_s = 0', "hbm_gb_per_s: expected .*, got 0"),
        ('extends = "h100-sxm"\nhbm_gb_per_s = -3e3', "hbm_gb_per_s: expected .*, got -3000.0"),
        ('extends = "h100-sxm"\nhbm_gb_per_s = nan', "hbm_gb_per_s: expected .*, got nan"),
        ('extends = "h100-sxm"\nhbm_gb_per_s = inf', "hbm_gb_per_s: expected .*, got inf"),
        ('extends = "h100-sxm"\nhbm_gb_per_s = true', "hbm_gb_per_s: expected .*, got True"),
        ('extends = "h100-sxm"\nhbm_gb_per_s = 3.35e12', "hbm_gb_per_s: expected .*, got 3350"),
        ('extends = "h100-sxm"\nhbm_bytes = 80', "hbm_bytes: expected .* bytes, got 80"),
        ('extends = "h100-sxm"\nsm_count = 132.5', "sm_count: expected a whole number .*got 132.5"),
        (
            'extends = "h100-sxm"\ngemm_peak_frac = 80',
            "gemm_peak_frac: .* to 1, a fraction",
        ),
        ('extends = "h100-sxm"\nl2_bytes = 1e12', "expected l2_bytes to be smaller than hbm_bytes"),
        (
            'extends = "h100-sxm"\ntarget = "CUDA"',
            'target: expected one of "cuda", "rocm", "cpu", got',
        ),
        ('extends = "h100-sxm"\nname = ""', "name: expected a text in quotes, got ''"),
        (
            'extends = "h100-sxm"\naliases = "x"',
            "aliases: expected a list of texts",
        ),
        (
            'extends = "h100-sxm"\naliases = ["fine", "\\u001b[2J"]',
            r"aliases\[2\]: expected a text in quotes, got '\\x1b\[2J'",
        ),
        ('extends = "h100-sxm"\nsource = "me"', "source: expected a section"),
        ('extends = "h100-sxm"\nsource.hbm = "me"', "source: unknown key hbm; expected: "),
        (
            'extends = "h100-sxm"\nsource.tdp_w = 3',
            "source.tdp_w: expected a text .*got 3",
        ),
        (
            'extends = "dgx-h100"\ndevice = "connectx-7"',
            "device: expected a device, but",
        ),
        ('extends = "dgx-h100"\ndevice = 3', "device: expected the name of a device, or a table"),
        ('extends = "dgx-h100"\n[device]\nhbm = 3', "my.toml: device: unknown key hbm of a device"),
        ('extends = "dgx-h100"\n[host]\ncores = 0', "my.toml: host: cores: expected .*, got 0"),
        ('extends = "rtx-2080-ti"\nkind = "device"\nsm_count = []', "sm_count: expected"),
        (
            'extends = "h100-sxm"\ncompute_capability = 9.0',
            "compute_capability: expected a text in quotes, got 9.0",
        ),
        (
            'extends = "h100-sxm"\nbase_mhz = 2000',
            "expected base_mhz to be at most boost_mhz",
        ),
        (
            'extends = "epyc-7742"\ntarget = "cuda"',
            "my.toml: expected pcie_gb_per_s: only a CPU has none",
        ),
        (
            'extends = "gb200-nvl72"\nlink_domain_gpus = 2',
            "my.toml: expected link_domain_gpus to be at least gpus",
        ),
        ('extends = "dgx-h100"\ndrives = 2', "expected storage, of which drives is the number"),
        (
            'kind = "node"\ndevice = "mi210"\ngpus = 1\nhost = "epyc-7543"\nsockets = 1\nnics = 2',
            "my.toml: expected nic and nics, or neither",
        ),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(HardwareError, match=said) as caught:
        hardware.load(path)
    assert "\n" not in str(caught.value)
    assert "my.toml" in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match=r"no\.toml: cannot be read: No such file"):
        hardware.load(tmp_path / "no.toml")
    with pytest.raises(HardwareError, match="cannot be read: Is a directory"):
        hardware.load(tmp_path)
    (tmp_path / "raw.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HardwareError, match="not a text file in UTF-8"):
        hardware.load(tmp_path / "raw.toml")
    _write(tmp_path, "a = " + "[" * 20_000, "deep.toml")
    with pytest.raises(HardwareError, match="not valid TOML"):
        hardware.load(tmp_path / "deep.toml")
    _write(tmp_path, "#" * 1_000_001, "long.toml")
    with pytest.raises(HardwareError, match="above the limit"):
        hardware.load(tmp_path / "long.toml")


@given(value=st.floats(allow_nan=True) | st.integers())
def test_a_figure_is_taken_as_given_or_refused(
    tmp_path_factory: pytest.TempPathFactory, value: float
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(f'extends = "h100-sxm"\npcie_gb_per_s = {value!r}\n')
    if 1e-3 <= value <= 1e6:
        assert hardware.device(path).pcie_gb_per_s == value
    else:
        with pytest.raises(HardwareError, match="pcie_gb_per_s: expected"):
            hardware.device(path)


def test_examples_of_the_docs_load(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    files = ("my-gpu.toml", "my-node.toml", "w.toml")
    gpu, node, whole = (
        hardware.load(_write(tmp_path, block, name))
        for block, name in zip(blocks, files, strict=True)
    )
    assert isinstance(gpu, hardware.Device)
    assert (gpu.name, gpu.hbm_gb_per_s, gpu.fp16_tflop_per_s) == ("my-gpu", 6000, 989)
    assert isinstance(node, hardware.Node)
    assert (node.gpus, node.host.name, node.device.hbm_gb_per_s) == (4, "epyc-7543", 2400)
    assert isinstance(whole, hardware.Node)
    assert (whole.name, whole.host.single_thread_ratio) == ("workstation", 1.5)


def test_python_and_errors_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = DOCS.read_text()
    monkeypatch.chdir(tmp_path)
    first_toml = re.search(r"```toml\n(.*?)```", text, re.DOTALL)
    assert first_toml is not None
    _write(tmp_path, first_toml[1], "my-gpu.toml")
    scope: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        for line in filter(None, block.splitlines()):
            code, _, shown = (part.strip() for part in line.partition("#"))
            if shown.startswith(("'", *"0123456789")):
                assert repr(eval(code, scope)).startswith(shown.split(",")[0])
            else:
                exec(code, scope)
    for line in re.findall(r"```text\n(.*?)```", text, re.DOTALL)[0].splitlines():
        if key := re.search(r"(hbm_\wb_per_s)", line):
            given_value = "-1" if key[1] == "hbm_gb_per_s" else "3"
            _write(tmp_path, f'extends = "h100-sxm"\n{key[1]} = {given_value}\n', "my-gpu.toml")
        name = "my-gpu.toml" if key else "h1000-sxm"
        with pytest.raises(HardwareError, match=re.escape(line)):
            hardware.load(name)
