"""Command line: `python -m tracegen list | record | validate | machine | generate`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tracegen.errors import UserError

if TYPE_CHECKING:
    import torch

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(prog="python -m tracegen", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)

    commands.add_parser("list", help="list the techniques and their scenarios")

    record = commands.add_parser("record", help="record traces on this machine")
    record.add_argument("--only", metavar="A,B", help="record these techniques (default: all)")
    record.add_argument("--preset", choices=["quick", "full"], default="quick")
    record.add_argument("--out", type=Path, default=Path("traces"), help="folder of all machines")
    record.add_argument("--seed", type=int, help="use this seed in every scenario")
    record.add_argument("--force", action="store_true", help="record even what is up to date")

    validate = commands.add_parser("validate", help="check trace files")
    validate.add_argument("paths", nargs="*", type=Path, help="files (default: all of traces/)")

    machine = commands.add_parser("machine", help="name this machine and measure its ceilings")

    generate = commands.add_parser("generate", help="answer a prompt, and print it")
    generate.add_argument("prompt")
    generate.add_argument("--max-new-tokens", type=int, default=64)
    generate.add_argument("--temperature", type=float, default=0.0)
    generate.add_argument("--top-k", type=int)
    generate.add_argument("--top-p", type=float)
    generate.add_argument("--seed", type=int, default=0)
    generate.add_argument("--raw", action="store_true", help="do not wrap in the chat format")

    for command in (record, machine, generate):
        command.add_argument("--device", help="cuda, mps or cpu (default: the best there is)")
    for command in (record, generate):
        command.add_argument("--model", help="GGUF file or Hugging Face folder (default: SmolLM2)")
        command.add_argument(
            "--attention",
            choices=["sdpa", "triton"],
            default="sdpa",
            help="torch's, or this lab's kernel (without a GPU interpreted: very slow)",
        )
    return top


def list_techniques() -> None:
    """Print every technique with its scenarios."""
    from tracegen.session import available_techniques, load_technique

    names, missing = available_techniques()
    table = Table("technique", "what it shows", "quick", "full", box=None, pad_edge=False)
    for name in names:
        technique = load_technique(name)
        quick = sum(s.preset == "quick" for s in technique.SCENARIOS)
        first_line = (technique.__doc__ or "").splitlines()[0]
        table.add_row(name, first_line, str(quick), str(len(technique.SCENARIOS)))
    console.print(table)
    for reason in missing:
        console.print(f"not here    {reason}")


def device_for(args: argparse.Namespace) -> torch.device:
    """The device asked for. Raises UserError where `--attention triton` cannot run on it."""
    from tracegen.machine import pick_device

    device = pick_device(args.device)
    if args.attention == "triton" and device.type != "cuda":
        try:
            from kernels.launch import INTERPRETED
        except ModuleNotFoundError:
            raise UserError(
                "--attention triton needs Triton, which is not installed here"
            ) from None
        if device.type != "cpu" or not INTERPRETED:
            raise UserError(
                f"--attention triton cannot run on {device.type} here; use --attention sdpa, "
                "or another --device"
            )
    return device


def record(args: argparse.Namespace) -> None:
    """Record the chosen techniques; skip what is up to date; keep what is finished on Ctrl-C."""
    from tracegen.session import Session, available_techniques, load_technique

    if args.only:
        names = args.only.split(",")
        for name in names:
            load_technique(name)
    else:
        names, missing = available_techniques()
        for reason in missing:
            console.print(f"skipped     {reason}")
    session = Session(
        args.preset, device_for(args), args.model, args.out, args.seed, args.attention
    )
    finished: list[str] = []
    try:
        stale = [n for n in names if args.force or not session.up_to_date(n)]
        for name in names:
            if name not in stale:
                console.print(f"up to date  {session.path(name)}")
        if not stale:
            return
        found = session.measured_machine
        console.print(f"machine     {found.name} · model {session.model.name}")
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
        ) as progress:
            bar = progress.add_task("recording", total=sum(map(session.passes, stale)))
            for name in stale:
                progress.update(bar, description=name)
                rows = session.record(name, on_pass=lambda: progress.advance(bar))
                finished.append(name)
                progress.print(f"recorded    {session.path(name)}  ({rows} rows)")
    except KeyboardInterrupt:
        done = ", ".join(finished) or "nothing"
        errors.print(f"stopped: finished {done}; earlier files are whole, run again to go on")
        raise SystemExit(130) from None


def validate(paths: list[Path]) -> None:
    """Check trace files one by one. Raises UserError when any is at fault."""
    from tracegen.trace import read_trace, trace_files

    paths = paths or [path for found in trace_files(Path("traces")).values() for path in found]
    if not paths:
        raise UserError("no traces to validate: record some with `make traces`")
    faults = 0
    for path in paths:
        try:
            trace = read_trace(path)
            console.print(f"valid       {path}  ({trace.table.num_rows} rows)")
        except UserError as error:
            faults += 1
            errors.print(f"error: {error}")
    if faults:
        raise UserError(f"{faults} of {len(paths)} trace files are not valid")


def show_machine(args: argparse.Namespace) -> None:
    """Measure and print this machine's ceilings."""
    from tracegen.machine import measure, pick_device

    found = measure(pick_device(args.device))
    table = Table("ceiling", "measured", box=None, pad_edge=False)
    table.add_row("folder", f"traces/{found.slug}")
    table.add_row("machine", found.name)
    table.add_row("copy bandwidth", f"{found.copy_bytes_per_s / 1e9:.1f} GB/s")
    table.add_row("read bandwidth", f"{found.read_bytes_per_s / 1e9:.1f} GB/s")
    for dtype, rate in found.matmul_flops_per_s.items():
        table.add_row(f"matmul {dtype}", f"{rate / 1e9:,.0f} GFLOP/s")
    console.print(table)


def generate_answer(args: argparse.Namespace) -> None:
    """Answer one prompt on standard output."""
    from tracegen.model import Sampler, load_model
    from tracegen.techniques.prefill_decode import generate

    if not args.prompt:
        raise UserError("the prompt is empty: give at least one token")
    sampler = Sampler(args.temperature, args.top_k, args.top_p, args.seed)
    model = load_model(args.model, device=str(device_for(args)), attention=args.attention)
    text = args.prompt if args.raw else model.tokenizer.chat(args.prompt)
    output = generate(model, model.tokenizer.encode(text), args.max_new_tokens, sampler)
    console.print(model.tokenizer.decode(output), markup=False)


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns the exit code: 2 for a UserError, printed as one line."""
    args = parser().parse_args(argv)
    try:
        match args.command:
            case "list":
                list_techniques()
            case "record":
                record(args)
            case "validate":
                validate(args.paths)
            case "machine":
                show_machine(args)
            case "generate":
                generate_answer(args)
    except UserError as error:
        errors.print(f"error: {error}", markup=False)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
