"""What a person and a pipe see: narration and progress, terminals, tables, pages and pictures.

May import errors, units and atomic. No torch.
"""

from ppdgrow.console.narrator import Narrator, ProgressBar, prepare_streams, report_error, table_columns, write_stdout
from ppdgrow.units import format_count, format_flops, format_seconds

__all__ = [
    "Narrator",
    "ProgressBar",
    "format_count",
    "format_flops",
    "format_seconds",
    "prepare_streams",
    "report_error",
    "table_columns",
    "write_stdout",
]
