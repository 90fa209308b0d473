"""What people read: the table in three formats, the workbook, the page."""

from importlib.util import find_spec

_NEEDED = {"openpyxl": "openpyxl", "great_tables": "great-tables", "nbconvert": "nbconvert"}
if missing := [package for name, package in _NEEDED.items() if not find_spec(name)]:
    raise ImportError(f"tables and reports need {' and '.join(missing)}; pip install 'depth-lib[report]'")
