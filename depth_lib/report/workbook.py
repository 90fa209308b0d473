"""The tables as a workbook: the paper's, laid out as the authors' own, a sheet for each other, and what all mean."""

import io
import itertools
import math

import pandas as pd
from openpyxl import Workbook
from openpyxl.formatting.rule import ColorScaleRule
from openpyxl.styles import Alignment, Border, Font, PatternFill, Side
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.worksheet import Worksheet

MISSING = "–"
TITLE = "Effective depth (ED, a layer) and ratio (ED + 1) / L, by metric and dataset"
RED, YELLOW, GREEN = "F8696B", "FFEB84", "63BE7B"
_CENTRE = Alignment(horizontal="center", vertical="center", wrap_text=True)
_WRAP = Alignment(wrap_text=True, vertical="top")
_THIN, _SHADE = Side(style="thin", color="999999"), PatternFill("solid", fgColor="EEEEEE")
_TWO_DECIMALS = {f"{name}{end}" for name in ("ratio", "score", "slope") for end in ("", "_low", "_high")}
_TWO_DECIMALS |= {"RATIO", "published_ratio", "same", "without", "fractional", "threshold"}
_WIDTHS = {"A": 12, "B": 40, "C": 55, "D": 65}

# name: title of the sheet, and what its rows say.
SHEETS = {
    "intervals": (
        "Intervals",
        "Effective depth with its 95 % bootstrap interval over prompts (low, high: layers that "
        "the prompts do not rule out), the share of draws with the same depth and with none (the interval is wider "
        "than the draws, as it allows for prompts that are not among these few), and what it rests on: the depth "
        "between layers, over all thresholds, every crossing of the cosine.",
    ),
    "thresholds": (
        "Thresholds",
        "Effective depth at other thresholds than the papers' (kl 0.5 of the maximum, overlap 0.3).",
    ),
    "five_probes": (
        "Five Probes",
        "Effective depth by the paper's three metrics and, by rules of our own, by the effects "
        "of a skip on future tokens and on all, residual erasure, integrated gradients, progress and settling; "
        "score is the centre of mass of an effect, in layers, and of settling the mean over tokens.",
    ),
    "beside_the_paper": (
        "Beside The Paper",
        "Published effective depth (Hu et al. 2025, arXiv 2512.14064, Table 1), "
        "and ours; within the interval: the published layer is one that our prompts do not rule out.",
    ),
    "by_difficulty": (
        "By Difficulty",
        "Depth score of each level, and its slope over the levels, with 95 % intervals.",
    ),
}
VERDICTS = {
    "same": "63BE7B",
    "within the interval": "C6E0B4",
    "differs": "F8CBAD",
    "differs, no interval": "FCE4D6",
    "no effective depth": "D9D9D9",
    "other depth": "D9D9D9",
}
DESCRIPTION = (
    (
        "cosine",
        "Where the model turns from removing features to adding them.",
        "c = mean of att_cos, mlp_cos and layer_cos; the last l in 0..L-2 with c[l] < 0 and c[l+1] ≥ 0.",
        "relative_contribution.pt: cosine similarity of what attention, MLP and block add to the residual stream with "
        "the residual stream, mean over all tokens of all prompts.",
    ),
    (
        "kl",
        "Where the logit lens comes near the model's answer.",
        "The first l in 0..L-2 with res_kl_divs[l] < 0.5 · max(res_kl_divs).",
        "logitlens_{n}exps.pt: KL(lens ‖ output) at the input of block l, in nats, mean over tokens.",
    ),
    (
        "overlap",
        "Where the logit lens already ranks the answer's top tokens high.",
        "The first l in 0..L-2 with res_overlaps[l] > 0.3.",
        "logitlens_{n}exps.pt: share of the output's five likeliest tokens among the lens's five, at the input of "
        "block l, mean over tokens.",
    ),
    (
        "future, all",
        "The last layer that later layers depend on; on tokens after the skipped ones, and on all. A rule of ours.",
        "The last l in 0..L-2 whose skipping changes what a later layer adds by over half of its norm.",
        "layer_effects_{n}exps.pt: largest relative change over prompts, positions and tokens.",
    ),
    (
        "erasure",
        "The last layer at which the answer still needs a token of the question. A rule of ours.",
        "The last l in 0..L-1 at which erasing one moves the answer by over half the most seen.",
        "logit_erasure_{n}exps.pt: change of the probabilities, a norm, when a token's residual stream at the input "
        "of block l is replaced by an average one.",
    ),
    (
        "igrads",
        "Where half of the answer has been attributed. A rule of ours.",
        "The first l in 0..L-1 at which half of the sum of |attribution| over layers is reached.",
        "igrads_igrads_{n}exps.pt: integrated gradients of the answer's probability at the output of block l.",
    ),
    (
        "progress",
        "Where half of the way from embeddings to final residual is gone. A rule of ours.",
        "The first l in 0..L-1 with progress[l] ≥ 1/2.",
        "relative_contribution.pt: share of the way that is gone at the input of block l, mean over tokens.",
    ),
    (
        "settling",
        "Where half of the tokens have settled on what the model predicts. A rule of ours.",
        "The first l in 0..L-1 with res_settled[l] ≥ 1/2; score: mean over tokens of where each settles.",
        "logitlens_{n}exps.pt: share of tokens whose lens has come within half a bit (Jensen-Shannon) of the output.",
    ),
    (
        "ED",
        "Effective depth: the layer l, counted from 0, that the rule finds.",
        f"No such layer, or no result: {MISSING}",
        "The three rules above.",
    ),
    (
        "RATIO",
        "The effective depth as a share of the model's depth.",
        "(ED + 1) / L, rounded to two decimals. Colours: red 0, yellow 0.5, green 1.",
        "L is the number of blocks.",
    ),
)
_SOURCES = (
    "Rules, thresholds and layout: Hu, Zhou, Zhang 2025, What Affects the Effective Depth of Large Language Models? "
    "(arXiv 2512.14064), Table 1.",
    "Curves: Csordás, Manning, Potts 2025, Do Language Models Use Their Depth Efficiently? (arXiv 2505.13898).",
    "Computed by depth_lib from the .pt files beside this workbook, in <dataset>/<model>/.",
)


def workbook(table: pd.DataFrame, further: dict[str, pd.DataFrame]) -> bytes:
    """A workbook's bytes: the effective-depth table, a sheet for each of `further` (names of `SHEETS`), descriptions.

    Ratios have two decimals and one colour scale everywhere: red 0, yellow 0.5, green 1. Missing values are "–",
    headers and names stay in sight, and every sheet prints in landscape, one page wide.
    """
    book = Workbook()
    _write_effective_depth(book.active, table)
    for name, frame in further.items():
        _write_flat(book.create_sheet(SHEETS[name][0]), name, frame)
    _write_description(book.create_sheet("Description"))
    book.properties.title = TITLE
    for sheet in book:
        sheet.page_setup.orientation, sheet.page_setup.paperSize = "landscape", sheet.PAPERSIZE_A4
        sheet.page_setup.fitToWidth, sheet.page_setup.fitToHeight = 1, 0
        sheet.sheet_properties.pageSetUpPr.fitToPage = True
        sheet.oddFooter.right.text = "&A, page &P of &N"
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


def _write_effective_depth(sheet: Worksheet, table: pd.DataFrame) -> None:
    """A title, three header rows with merged cells, a row a model."""
    sheet.title = "Effective Depth Results"
    sheet.append([TITLE])
    sheet["A1"].font = Font(bold=True, size=13)
    first, levels = 2, table.columns.nlevels
    sheet.cell(first, 1, "Model")
    sheet.merge_cells(start_row=first, end_row=first + levels - 1, start_column=1, end_column=1)
    for level in range(levels):
        start = 2
        for name, group in itertools.groupby(table.columns, key=lambda column: column[: level + 1]):
            end = start + len(list(group)) - 1
            sheet.cell(first + level, start, name[-1])
            if end > start:
                sheet.merge_cells(start_row=first + level, end_row=first + level, start_column=start, end_column=end)
            start = end + 1
    _head(sheet, first, first + levels - 1, table.shape[1] + 1)
    names = ["model", *table.columns.get_level_values(-1)]
    _write_rows(sheet, first + levels, names, table.reset_index().itertuples(index=False))
    sheet.freeze_panes = sheet.cell(first + levels, 2)
    sheet.print_title_rows = f"{first}:{first + levels - 1}"
    sheet.column_dimensions["A"].width = max([len(str(model)) for model in table.index] + [10]) + 2
    for i in range(table.shape[1]):
        sheet.column_dimensions[get_column_letter(i + 2)].width = 8


def _write_flat(sheet: Worksheet, name: str, frame: pd.DataFrame) -> None:
    """A title, what the rows say, one header row, a row a value; verdicts painted."""
    title, about = SHEETS[name]
    for row, text, font in ((1, title, Font(bold=True, size=13)), (2, about, Font(italic=True))):
        sheet.cell(row, 1, text).font = font
        sheet.cell(row, 1).alignment = _WRAP
        sheet.merge_cells(start_row=row, end_row=row, start_column=1, end_column=len(frame.columns))
    sheet.append([column.replace("_", " ") for column in frame.columns])
    _head(sheet, 3, 3, len(frame.columns))
    _write_rows(sheet, 4, list(frame.columns), frame.itertuples(index=False))
    widths = [_width(frame[column], column) for column in frame.columns]
    for i, width in enumerate(widths, start=1):
        sheet.column_dimensions[get_column_letter(i)].width = width
    sheet.row_dimensions[2].height = 15 * (1 + int(1.15 * len(about) / sum(widths)))
    sheet.row_dimensions[3].height = 30
    sheet.freeze_panes = "D4"  # model, dataset and metric stay
    sheet.auto_filter.ref = f"A3:{get_column_letter(len(frame.columns))}{3 + len(frame)}"
    sheet.print_title_rows = "3:3"
    for column in ("difference", "verdict") if "verdict" in frame else ():
        i = list(frame.columns).index(column) + 1
        for row, verdict in enumerate(frame["verdict"], start=4):
            sheet.cell(row, i).fill = PatternFill("solid", fgColor=VERDICTS[verdict])


def _head(sheet: Worksheet, first: int, last: int, n_columns: int) -> None:
    for row in sheet.iter_rows(first, last, 1, n_columns):
        for cell in row:
            cell.font, cell.alignment, cell.fill = Font(bold=True), _CENTRE, _SHADE
            cell.border = Border(left=_THIN, right=_THIN, top=_THIN, bottom=_THIN)


def _write_rows(sheet: Worksheet, first: int, names: list[str], rows) -> None:
    """Layers whole, ratios with two decimals and coloured, texts to the left."""
    for row, values in enumerate(rows, start=first):
        for i, (name, value) in enumerate(zip(names, values, strict=True), start=1):
            two = name in _TWO_DECIMALS
            shown = value if isinstance(value, str) else MISSING if pd.isna(value) else round(float(value), 2)
            cell = sheet.cell(row, i, int(shown) if isinstance(shown, float) and not two else shown)
            cell.alignment = Alignment(horizontal="left" if isinstance(value, str) else "center")
            cell.number_format = "0.00" if two else "0"
    ratios = [get_column_letter(i) for i, name in enumerate(names, start=1) if name.lower() == "ratio"]
    if ratios and (last := sheet.max_row) >= first:
        scale = ColorScaleRule("num", 0, RED, "num", 0.5, YELLOW, "num", 1, GREEN)
        sheet.conditional_formatting.add(" ".join(f"{letter}{first}:{letter}{last}" for letter in ratios), scale)


def _write_description(sheet: Worksheet) -> None:
    sheet.append(["Name", "What it is", "Rule", "Where from"])
    for row in DESCRIPTION:
        sheet.append(row)
    sheet.append([])
    for source in _SOURCES:
        sheet.append([source])
        sheet.merge_cells(start_row=sheet.max_row, end_row=sheet.max_row, start_column=1, end_column=4)
    for row in sheet.iter_rows():
        for cell in row:
            cell.alignment = _WRAP
    _head(sheet, 1, 1, 4)
    for letter, width in _WIDTHS.items():
        sheet.column_dimensions[letter].width = width
    for row, texts in enumerate(DESCRIPTION, start=2):  # wrapped rows do not grow by themselves everywhere
        lines = max(math.ceil(1.1 * len(text) / width) for text, width in zip(texts, _WIDTHS.values(), strict=True))
        sheet.row_dimensions[row].height = 15 * lines
    sheet.freeze_panes = "B2"


def _width(values: pd.Series, column: str) -> float:
    longest = max([len(str(value)) for value in values if isinstance(value, str)] + [0])
    return min(max(longest, max(map(len, column.split("_"))) + 3, 8), 70) + 2
