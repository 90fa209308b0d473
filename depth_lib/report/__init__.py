"""What people read: the table in three formats, the workbook, the page."""

from importlib.util import find_spec

if missing := [package for package in ("openpyxl",) if not find_spec(package)]:
    raise ImportError(f"tables and reports need {' and '.join(missing)}; pip install 'depth-lib[report]'")
