"""conda below, wheels on top; and whether environments are what they are said to be."""

from __future__ import annotations

import hashlib
import subprocess

import pytest

from bisect_env.environments.cache import verify
from bisect_env.environments.lock import LockedPackage, UnbuildableError, UnsolvableError
from bisect_env.environments.lockfiles import make_lock, parse_lock
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.environments.provider import Environments
from bisect_env.environments.request import CondaRequest, EnvironmentRequest
from bisect_env.environments.validation import cuda_majors, lock_warnings, prefix_warnings, provided_to_pypi

from .conda_channel import Channel
from .index_server import make_wheel
from .test_conda import read_by_conda_lock, run


@pytest.fixture
def channel(tmp_path, python):
    """conda has `shared` 1.5 alone, PyPI has 1.0 to 2.0 of it."""
    channel = Channel(tmp_path / "channel")
    channel.add_python()
    channel.add_library("shared", "1.5", python=python)
    channel.add("zlib-c", "1.0", files={"lib/libz.txt": "a C library\n"})
    channel.write()
    return channel


@pytest.fixture
def wheels(index):
    for version in ("1.0", "1.5", "2.0"):
        index.add("shared", version, modules={"shared.py": f"__version__ = 'wheel {version}'\n"})
    index.add("zlib-c", "9.0")
    main = "import sys\ndef main():\n    print('demo', sys.prefix)\n"
    own = {"scripts": {"demo": "demo:main"}, "modules": {"demo.py": main}}
    index.add("demo", "1.0", requires=("shared", "zlib-c"), **own)
    index.add("demo", "2.0", requires=("shared>=2",))
    return index


def mixed(channel, index, python, packages=(), **pins):
    conda = CondaRequest(channels=(channel.url,), packages=("shared", "zlib-c"))
    return EnvironmentRequest(python, pins=pins, packages=packages, index=index.url, conda=conda)


@pytest.mark.integration
def test_wheels_go_on_top_with_condas_packages_as_constraints(channel, wheels, cache, python, tmp_path):
    lock = Environments(cache).solve(mixed(channel, wheels, python, demo="1.0"))
    found = [(p.name, p.version, p.manager) for p in lock.packages]
    assert ("shared", "1.5", "conda") in found
    assert ("demo", "1.0", "pip") in found
    assert ("zlib-c", "9.0", "pip") in found, "conda's C library is not the Python package of that name"
    assert len(found) == 5
    path = tmp_path / "conda-lock.yml"
    path.write_text(lock.text)
    assert {(p.name, p.manager) for p in read_by_conda_lock(path).package} == {(n, m) for n, _, m in found}
    assert parse_lock(lock.text) == lock
    prefix = ensure_prefix(lock, cache_dir=cache)
    assert (
        run(prefix, "import shared, demo, sys; print(shared.__version__, sys.prefix)") == f"1.5 {prefix.path}"
    )
    done = subprocess.run([prefix.path / "bin" / "demo"], capture_output=True, text=True, check=True)
    assert done.stdout == f"demo {prefix.path}\n", "a wheel's command works where the prefix was renamed to"
    assert not [checked for checked in verify(cache) if checked.changed]
    assert ensure_prefix(lock, cache_dir=cache).build_seconds == 0.0


@pytest.mark.integration
def test_a_wheel_that_conda_does_not_let_in(channel, wheels, cache, python):
    with pytest.raises(UnsolvableError, match=r"shared==1\.5"):
        Environments(cache).solve(mixed(channel, wheels, python, demo="2.0"))


@pytest.mark.integration
def test_a_neighbours_wheels_are_taken_again(channel, wheels, cache, python):
    wheels.add("more", "1.0")
    near = Environments(cache).solve(mixed(channel, wheels, python, demo="1.0", packages=("more",)))
    wheels.add("more", "2.0")
    wheels.raw.clear()
    fresh = Environments(cache.with_name("other"))
    request = mixed(channel, wheels, python, packages=("more",), demo="1.0")
    assert {p.name: p.version for p in fresh.solve(request).packages}["more"] == "2.0"
    assert {p.name: p.version for p in fresh.solve(request, near).packages}["more"] == "1.0"


def conda(name, version, build="0", **more):
    url = f"https://conda.example/main/linux-64/{name}-{version}-{build}.conda"
    return LockedPackage(name, version, "conda", url, "ab" * 32, build, "cd" * 16, **more)


def wheel(name, version):
    return LockedPackage(
        name, version, "pip", f"https://files.example/{name}-{version}-py3-none-any.whl", "ab" * 32
    )


def test_what_conda_provides_to_wheels():
    python = (("python", ">=3.11"),)
    packages = [
        conda("pytorch", "2.8.0", "cuda129_mkl_py312_h1", dependencies=python),
        conda("msgpack-python", "1.1.0", dependencies=(("python_abi", "3.12.* *_cp312"),)),
        conda("typing_extensions", "4.12.2", dependencies=python),
        conda("tzdata", "2025b", dependencies=python),
        conda("odd", "1.0.banana", dependencies=python),
        conda("zlib", "1.3", dependencies=(("libgcc", ">=13"),)),
    ]
    assert provided_to_pypi(packages) == {
        "torch": "2.8.0",
        "msgpack": "1.1.0",
        "typing-extensions": "4.12.2",
    }


def test_two_major_versions_of_cuda():
    packages = [wheel("torch", "2.8.0"), wheel("nvidia-cublas-cu12", "12.8"), wheel("cuml-cu13", "25.12.0")]
    assert cuda_majors(packages) == {12: ["nvidia-cublas-cu12"], 13: ["cuml-cu13"]}
    assert cuda_majors([wheel("torch", "2.4.0+cu118"), wheel("nvidia-cuda-runtime", "13.0.96")]) == {
        11: ["torch"],
        13: ["nvidia-cuda-runtime"],
    }
    assert cuda_majors(
        [
            conda("cuda-version", "12.9"),
            conda("pytorch", "2.8.0", "cuda129_mkl_py312_had1_302"),
            conda("cuml", "25.12.00", "cuda12_py312_251211_5c22c200"),
            conda("pytorch-old", "1.13.0", "cuda112py310he33e0d6_200"),
            conda("numpy", "2.0.0", "py312h58c1407_0"),
        ]
    ) == {11: ["pytorch-old"], 12: ["cuda-version", "pytorch", "cuml"]}
    (text,) = lock_warnings(make_lock("3.12", "linux-64", packages))
    sides = "12 (nvidia-cublas-cu12, ...); 13 (cuml-cu13, ...)"
    assert text == f"two major versions of CUDA in one environment: {sides}"


def test_a_cpu_only_build_beside_a_cuda_axis():
    packages = [conda("pytorch", "2.8.0", "cpu_mkl_py312_h1_100"), conda("libarrow", "19.0", "h1_3_cpu")]
    lock = make_lock("3.12.1", "linux-64", packages)
    assert lock_warnings(lock) == ()
    (text,) = lock_warnings(lock, cuda=True)
    assert "pytorch 2.8.0 cpu_mkl_py312_h1_100; `build: cuda*` forbids" in text
    assert "libarrow" not in text
    (text,) = lock_warnings(lock, asked=("libarrow",), cuda=True)
    assert "libarrow" in text


def prefix_of(tmp_path, python, *, torch_cuda, dist):
    """What an installer leaves, as far as a prefix can be asked."""
    site = tmp_path / "lib" / f"python{python}" / "site-packages"
    site.mkdir(parents=True)
    for name, version in dist.items():
        (site / f"{name}-{version}.dist-info").mkdir()
    (site / "torch").mkdir()
    text = f"__version__ = '2.8.0'\ndebug = False\ncuda: Optional[str] = {torch_cuda!r}\n"
    (site / "torch" / "version.py").write_text(text)
    return tmp_path


def test_a_prefix_that_is_what_it_says(tmp_path, python):
    dependencies = (("python", "3.12.*"),)
    torch = conda("pytorch", "2.8.0", "cuda129_py312_0", dependencies=dependencies)
    packages = [torch, wheel("Ruamel.YAML", "0.18.0"), wheel("local", "1.0+cu129")]
    dist = {"torch": "2.8.0", "ruamel.yaml": "0.18", "local": "1.0+cu129"}
    held = prefix_of(tmp_path, python, torch_cuda="12.9", dist=dist)
    assert prefix_warnings(make_lock("3.12.1", "linux-64", packages), held) == ()


def test_a_prefix_that_is_for_another_cuda(tmp_path, python):
    dependencies = (("python", "3.12.*"),)
    torch = conda("pytorch", "2.8.0", "cuda129_py312_0", dependencies=dependencies)
    dist = {"torch": "2.7.1", "demo": "1.1"}
    held = prefix_of(tmp_path, python, torch_cuda="13.0", dist=dist)
    packages = [torch, wheel("demo", "1.1")]
    assert prefix_warnings(make_lock("3.12.1", "linux-64", packages), held) == (
        "the conda package of torch is 2.8.0, and calls itself 2.7.1",
        "torch was built with CUDA 13.0, and the environment is one for 12",
    )
    (tmp_path / "lib" / f"python{python}" / "site-packages" / "torch" / "version.py").write_text(
        "cuda = None\n"
    )
    assert "torch was built without CUDA, and the environment is one for CUDA 12" in prefix_warnings(
        make_lock("3.12.1", "linux-64", packages), held
    )


@pytest.mark.integration
def test_a_wheel_that_is_another_version_than_its_name_says(index, cache, python):
    index.add("demo", "1.0")
    release = index.packages["demo"][0]
    release.content = make_wheel("demo", "1.1")[1]
    release.sha256 = hashlib.sha256(release.content).hexdigest()
    url = f"{index.url.removesuffix('/simple')}/files/{release.filename}"
    lock = make_lock(python, "linux-64", [LockedPackage("demo", "1.0", "pip", url, release.sha256)])
    with pytest.raises(UnbuildableError, match=r"1\.1|1\.0"):
        ensure_prefix(lock, cache_dir=cache)
    assert not (cache / "prefixes" / lock.content_hash).exists()
