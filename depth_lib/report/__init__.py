"""What people read: the table in three formats, the workbook, the page."""
