"""pyproject.toml holds the settings; packages that are found, plus one that lies elsewhere, take a line of code."""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=["depth_lib*"]), "depth_lib.registry"])
