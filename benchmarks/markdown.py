"""Tables in Markdown, as the docs have them."""


def markdown(rows):
    """The lines of a table; rows: dicts with the same keys, the names of its columns."""
    cells = [rows[0].keys(), *(row.values() for row in rows)]
    header, *lines = ["| " + " | ".join(map(str, line)) + " |" for line in cells]
    return [header, "|---" * len(rows[0]) + "|", *lines]
