"""``bitproof causes``."""

from typing import Annotated

import typer


def causes(
    codes: Annotated[list[str] | None, typer.Argument(help="Only these codes.", metavar="[CODE]…")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Evidence and remedy of all codes.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print them as JSON and nothing else.")] = False,
) -> None:
    """List the cause codes, a line each; of those that are named, what it means, the evidence, the remedy.

    Examples:
      bitproof causes

      bitproof causes data-restarted rng-shifted
    """
    from bitproof.cli.output import console, print_json, reader_may_leave  # noqa: PLC0415  # --help must be quick
    from bitproof.compare.causes.catalogue import BY_CODE, CODES  # noqa: PLC0415
    from bitproof.errors import UsageError  # noqa: PLC0415

    unknown = [code for code in codes or [] if code not in BY_CODE]
    if unknown:
        msg = f"there is no cause code {unknown[0]!r}. `bitproof causes` lists all {len(CODES)}."
        raise UsageError(msg)
    chosen = [BY_CODE[code] for code in codes] if codes else list(CODES)
    if json:
        print_json({"format": 1, "causes": chosen})
        return
    with reader_may_leave():
        from rich.padding import Padding  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        printed = console()
        if not codes and not verbose:
            table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
            for code in chosen:
                table.add_row(Text(code.code, style="bold"), Text(code.finding))
            printed.print(table)
            printed.print(Text("\n`bitproof causes CODE` says what shows it and what to do.", style="dim"))
            return
        for code in chosen:
            printed.print(Text(code.code, style="bold"))
            for label, text in (("means", code.finding), ("evidence", code.evidence), ("remedy", code.remedy)):
                printed.print(Padding(Text.assemble((f"{label}: ", "dim"), text), (0, 0, 0, 2)))
