"""pyproject.toml holds the settings; packages that are found, plus two that lie elsewhere, take a line of code."""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=["depth_lib*"]), "depth_lib.registry", "depth_lib.notebooks"])
