"""depth-lib COMMAND: each command is a function here, and its docstring is its help.

Options are the parameters of params files and notebooks by the same names: N_EXAMPLES is --n-examples. A command takes
only those that it uses. torch is imported only by commands that need it.
"""

import inspect
import sys
import types
import typing
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from pydantic import Field
from pydantic.fields import FieldInfo

from .. import __version__
from ..files import empty_folder, in_project
from ..models.gguf import WHEELS, fetched
from ..params import (
    NAMED_SOURCES,
    PAPER_DATASETS,
    Params,
    ParamsError,
    Words,
    checked,
    command,
    find_model,
    in_order,
    not_among,
    option,
    params_files,
    words,
)
from ..remote.errors import RemoteError
from ..results.schemas import ARTIFACTS, TABLE_PROBES, ArtifactError
from ..run import OtherSettings, Run
from .execute import Notebook, execute, say, slots_for
from .status import matrix, runs_in
from .table import is_new, make_table


class Options(Params):
    """Every option of the command line: the parameters of a run, and those of single commands."""

    OUT: str = Field("", description="folder of the results; by default outputs (outputs/demo for --set demo)")
    PROBES: Words = Field([], description=f"{', '.join(ARTIFACTS)}; by default those in the params files")
    SET: str = Field("", description="a folder in params/models: paper, ndif, real, demo, or your own")
    MODELS: Words = Field(
        [], description='models, instead of --set: names, folders, GGUF files or Hub ids, as "A B" or A,B'
    )
    DATASETS: Words = Field(
        [],
        description="data sets; by default those in OUT (table; status without --models or --set) or the papers' three",
    )
    JOBS: int = Field(
        0,
        ge=0,
        description="number of runs at a time, at most one per GPU; 0 means one per GPU, or a single run if there is "
        "no GPU",
    )
    KEEP_GOING: bool = Field(False, description="continue with other runs after a failure")
    LIST: bool = Field(False, description="only print the command of each unfinished run, for a job array")
    AT_MOST: float = Field(0.05, allow_inf_nan=False, description="highest cost allowed, in nats per token")
    SAVE: str = Field("", description="write the shorter model to this folder")
    CHOICES: int = Field(
        200,
        ge=0,
        description="number of HellaSwag questions on which accuracy is measured before and after removal; 0: none",
    )
    TO: str = Field("", description="write figures and numbers to this folder")

    @property
    def out(self) -> Path:
        out = in_project(self.OUT or ("outputs/demo" if self.SET == "demo" else "outputs"))
        if out.is_file():
            raise ParamsError(f"OUT={out} is a file; use a folder")
        return out

    @property
    def models(self) -> list[str]:
        """MODELS, or the models of SET (by default the papers'), small ones first."""
        sets = {name: path.parent.name for name, path in params_files("models").items()}
        if self.SET and (problem := not_among(sorted({*sets.values()}), "set", self.SET)):
            raise ParamsError(problem)
        return self.MODELS or in_order(name for name in sets if sets[name] == (self.SET or "paper"))

    def given(self, *but: str) -> dict:
        """The parameters of a run that were given."""
        return self.model_dump(include={*Params.model_fields} - {*but}, exclude_unset=True)

    def runs(self) -> list[Run]:
        """Every model with every data set, model by model. By default, each data set has the probes of its params file.

        A probe that reads no prompts runs on only one data set per model: GSM8K, or the first.
        """
        datasets = sorted(dict.fromkeys(self.DATASETS) or PAPER_DATASETS, key=lambda name: name != "gsm8k")
        if problem := not_among(ARTIFACTS, "probe", *self.PROBES):
            raise ParamsError(problem)
        runs = []
        for model in dict.fromkeys(self.models):
            placed = set()  # probes that read no prompts
            for dataset in datasets:
                run = Run(self.given("PROBES") | {"MODEL": model, "DATASET": dataset, "OUT": str(self.out)})
                probes = [probe for probe in self.PROBES or run.params.PROBES if probe not in placed]
                placed |= {probe for probe in probes if not ARTIFACTS[probe].reads}
                run.params.PROBES = probes
                runs += [run] if probes else []
        of_pair = [probe for probe, row in ARTIFACTS.items() if row.of_pair]
        readers = dict.fromkeys(("PAIR", "QUESTION", "ANSWER"), of_pair)
        readers |= dict.fromkeys(("LENS", "GENERATE"), ["logit_lens"]) | {"CONTROL": [*TABLE_PROBES]}
        chosen = {probe for run in runs for probe in run.params.PROBES}
        for name, probes in readers.items():
            if name in self.model_fields_set and getattr(self, name) and not chosen.intersection(probes):
                only = ", ".join(probes)
                raise ParamsError(f"{name} affects only {only}; leave it out, or add one of these to PROBES")
        folders = {}
        for run in runs:
            if folders.setdefault(run.folder, run) is not run:
                models = [*dict.fromkeys(str(one.params.MODEL_ID) for one in (folders[run.folder], run))]
                remedy = "use only one data set"
                if len(models) > 1:
                    remedy = "name one differently, in a params file (MODEL, MODEL_ID) or as in: "
                    remedy += command("run", "NAME", run.params.DATASET, MODEL_ID=models[1])
                raise ParamsError(f"two runs ({' and '.join(models)}) would write to {run.folder}; {remedy}")
        return runs


_LOADING = "REVISION DTYPE QUANTIZATION DEVICE_MAP PASSES REMOTE".split()
_RUN = [name for name in Params.model_fields if name not in ("MODEL", "MODEL_ID", "DATASET")]
_ENGINE = ["JOBS", "KEEP_GOING", "LIST"]


class _Command(click.Command):
    """A command whose --remote or --control needs no value, even before an argument."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given, odd = [], []
        for word, following in zip(args, [*args[1:], "--"], strict=False):
            name = word.lstrip("-").upper().replace("-", "_")
            if word.startswith("--") and getattr(Options.model_fields.get(name), "default", None) is False:
                try:
                    checked({name: following}, Options)
                except ParamsError as problem:
                    word += "=true"
                    odd += [str(problem)] * (not following.startswith("--"))
            given.append(word)
        try:
            return super().parse_args(ctx, given)
        except click.UsageError as error:  # what stands after a flag may be no argument, but a wrong value
            if odd and "extra argument" in error.message:
                raise click.UsageError("\n".join([error.message, *odd]), ctx) from None
            raise


class _Commands(click.Group):
    command_class = _Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands]

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple:
        if problem := not_among(self.commands, "command", args[0]):
            raise ParamsError(problem)
        return super().resolve_command(ctx, args)


_NAMES = {"token_normalize_func": lambda name: name.lower().replace("_", "-"), "help_option_names": ["-h", "--help"]}


@click.group(cls=_Commands, context_settings=_NAMES | {"max_content_width": 110})
@click.version_option(__version__)
def depth_lib() -> None:
    """How much of its depth does a language model use? Run COMMAND --help for its options."""


def _takes(*options: str) -> Callable:
    """Make a function (asked, *arguments) a command with these options."""

    def added(do: Callable) -> Callable:
        def called(**typed: Any) -> int:
            given = {name: typed[name] for name in options if typed[name] not in (None, ())}
            several = {
                name: [word for text in texts for word in words(text)]
                for name, texts in given.items()
                if isinstance(texts, tuple)
            }
            for name, value in (given | several).items():
                if value in ("", []):
                    raise ParamsError(f"{option(name)} is empty; set it to a value, or leave it out")
            return do(Options(**checked(given | several, Options)), *(typed[name] for name in arguments))

        arguments = [*inspect.signature(do).parameters][1:]
        made: list[click.Parameter] = [click.Argument([name]) for name in arguments]
        made += [
            click.Option(
                [option(name), name],
                help=f"{field.description}{_default(name, field)}",
                metavar=_kind(field.annotation),
                multiple=typing.get_origin(field.annotation) is list,
            )
            for name, field in ((name, Options.model_fields[name]) for name in options)
        ]
        about = inspect.getdoc(do)
        depth_lib.add_command(_Command(do.__name__, callback=called, params=made, help=about, context_settings=_NAMES))
        return do

    return added


def _default(name: str, field: FieldInfo) -> str:
    if field.default in ("", None, False, []):
        return ""
    if name == "SOURCE":
        others = "from the data set's params file, usually hub"
        return f"  [default: embedded for toy models; for other models, {others}; for prune, always sample]"
    if name == "DTYPE":
        return "  [default: from params files, else the checkpoint's own; float32 for toy models and GGUF files]"
    return f"  [{'from params files, else' if name in Params.model_fields else 'default:'} {field.default}]"


def _kind(annotation: Any) -> str:
    """A type as the help shows it: INTEGER, NAMES, none|8bit|4bit."""
    if typing.get_origin(annotation) is typing.Literal:
        return "|".join(typing.get_args(annotation))
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return "|".join(_kind(kind) for kind in typing.get_args(annotation) if kind is not type(None))
    if typing.get_origin(annotation) is list:
        return "NAMES"
    return {int: "INTEGER", float: "NUMBER", bool: "[yes|no]"}.get(annotation, "TEXT")


@_takes("MODELS", "DATASETS", *_RUN, *_ENGINE)
def demo(asked: Options) -> int:
    """Run three toy models on three embedded data sets; table and figures go to outputs/demo (3 to 8 minutes)."""
    control = "PROBES" not in asked.model_fields_set
    values = {"SET": "demo", "CONTROL": control, "JOBS": 2} | asked.model_dump(exclude_unset=True)
    return sweep(Options(**values))


@_takes("MODELS", "DATASETS", *_RUN, *_ENGINE)
def real(asked: Options) -> int:
    """Run a language model with 135M parameters (a 93 MB download) on three data sets; its table is in outputs/real."""
    values = {"MODELS": [*WHEELS], "OUT": "outputs/real"} | asked.model_dump(exclude_unset=True)
    return sweep(Options(**values))


@_takes("SET", "MODELS", "DATASETS", *_RUN, *_ENGINE)
def sweep(asked: Options) -> int:
    """Do all unfinished runs, then update OUT's table if any result is newer. Example: sweep --set demo --jobs 2"""
    if (failed := _run(asked, asked.runs())) or asked.LIST or is_new(asked.out):
        return failed
    return make_table(asked.out, [], [])


@_takes("MODEL_ID", *_RUN, "JOBS")
def run(asked: Options, model: str, dataset: str) -> int:
    """Run one model on one data set, and print its effective depths. Example: run toy-8l gsm8k --source embedded"""
    runs = asked.model_copy(update={"MODELS": [model], "DATASETS": [dataset]}).runs()
    if failed := _run(asked, runs):
        return failed
    print(*(line for one in runs for line in one.depths()), sep="\n")
    return 0


@_takes("SET", "MODELS", "DATASETS", "OUT")
def table(asked: Options) -> int:
    """Make the table and figures of the results in OUT, and a page that shows them: report.html"""
    return make_table(asked.out, asked.models if asked.MODELS or asked.SET else [], asked.DATASETS)


@_takes("SET", "MODELS", "DATASETS", *(name for name in _RUN if name != "REPLACE"))
def status(asked: Options) -> int:
    """List which results are done, missing, running or failed, for the runs in OUT, or for the models given by --set
    or --models."""
    if asked.MODELS or asked.SET:
        print(matrix(asked.out, asked.runs()))
        return 0
    if others := [option(name) for name in sorted(asked.model_fields_set - {"OUT"})]:
        raise ParamsError(f"{others[0]} needs --set or --models; add one of these, or use --out alone")
    below = [] if asked.OUT else sorted(folder for folder in asked.out.glob("*/") if folder.name != "replaced")
    tables = [shown for folder in (asked.out, *below) if (shown := matrix(folder, *runs_in(folder)))]
    print(
        *tables or [f"{asked.out} has no runs yet; to list runs that you can start: {command('status', SET='paper')}"],
        sep="\n\n",
    )
    return 0


@_takes(*_LOADING)
def check(asked: Options, model: str) -> int:
    """Load a model, verify the identities that the probes rely on, and print the errors. Example: check toy-8l"""
    from ..models.families import known  # loads torch
    from ..session import check_model

    one = Run(asked.given() | {"MODEL": model})
    check_model(one.llm, one.remote)
    tokens = one.llm.tokenizer.tokenize("The capital of France is", add_special_tokens=True)
    print(known(one.llm), f"first tokens of a prompt: {' '.join(map(repr, tokens[:4]))}", sep="\n")
    return 0


@_takes(*_LOADING[:-1], "SOURCE", "N_EXAMPLES", "AT_MOST", "CHOICES", "SAVE")
def prune(asked: Options, model: str) -> int:
    """Remove the blocks that a model can do without, judged on GSM8K prompts.

    Example: prune SmolLM2-135M-Instruct --save shorter
    """
    from ..data.choices import shipped_choices  # loads torch
    from ..data.tokens import fitting
    from ..pruning import prune as without_blocks

    one = Run({"SOURCE": "sample"} | asked.given() | {"MODEL": model, "DATASET": "gsm8k"})
    if asked.SAVE and one.params.PASSES > 1:
        raise ParamsError("SAVE cannot write a model whose passes share their weights; leave out --save or --passes")
    if asked.SAVE:
        empty_folder(asked.SAVE, ParamsError)
    source, prompts = one.params.SOURCE, one.prompts
    of = Path(source).name
    if source in NAMED_SOURCES:  # ours, not the user's own: what is too long for the model is left out
        prompts, of = fitting(one.llm, prompts), f"gsm8k (source: {source})"
    choices = shipped_choices(asked.CHOICES, source) if asked.CHOICES else ()
    pruned = without_blocks(one.llm, prompts, asked.AT_MOST, choices)
    pruned = replace(pruned, prompts=f"{pruned.prompts} of {of}")
    print(pruned, f"Measured on {pruned.prompts}", *[pruned.save(asked.SAVE).parent] if asked.SAVE else [], sep="\n")
    return 0


@_takes("TO")
def compare(asked: Options, first: str, second: str) -> int:
    """Compare two runs. Example: compare outputs/gsm8k/A outputs/gsm8k/B --to folder"""
    from ..comparison import compare as side_by_side  # loads torch

    if first == second:
        raise ParamsError(f"compare needs two different folders, got {first} twice")
    short = [Path(folder).name for folder in (first, second)]
    names = short if len({*short}) == 2 else [first, second]
    found = side_by_side(dict(zip(names, (first, second), strict=True)))
    print(found, *found.save(asked.TO) if asked.TO else [], sep="\n")
    return 0


def _run(asked: Options, runs: Sequence[Run]) -> int:
    """Execute the unfinished runs; the exit status. Invalid combinations are rejected before anything runs."""
    left = [*filter(_is_left, runs)]
    if asked.LIST:
        for one in left:
            print(_command(asked, one))
        return 0
    for one in left:
        _prepare(one, asked.KEEP_GOING)
    failed = 0
    if left:
        slots = slots_for(asked.JOBS, on_server=all(one.on_server for one in left))
        gpus = [slot["CUDA_VISIBLE_DEVICES"] for slot in slots if "CUDA_VISIBLE_DEVICES" in slot]
        shares = f": GPU {' | '.join(gpus)}" if gpus else ""
        say(f"{len(left)} of {len(runs)} runs left, {len(slots)} at a time{shares}")
        failed = execute([_notebook(one) for one in left], slots, asked.KEEP_GOING)
    say(f"{asked.out}: {len(runs) - sum(map(_is_left, left))} of {len(runs)} runs finished")
    return failed


def _is_left(one: Run) -> bool:
    return bool(one.lacking) or not (one.folder / "probe.ipynb").exists()


def _prepare(one: Run, keep_going: bool) -> None:
    """Refuse a run that cannot work, before anything runs; with keep_going its own notebook fails."""
    if one.on_server:
        from ..remote.server import host_and_key  # loads torch

        host_and_key(one.remote)
    try:
        one.check()
        one.settle(*one.params.PROBES)
        one.note()
        if one.params.MODEL_ID in WHEELS:
            fetched(one.params.MODEL_ID)  # here, and not in each notebook
    except OtherSettings:
        raise
    except ValueError:
        if not keep_going:
            raise


def _notebook(one: Run) -> Notebook:
    return Notebook(one.name, "probe", one.folder, one.params.model_dump(), one.sweeps, lambda: one.lacking)


def _command(asked: Options, one: Run) -> str:
    """The command of a single run, from any folder."""
    given = {name: getattr(one.params, name) for name in asked.given("PROBES", "OUT")}
    if one.params.SOURCE == "hub" != asked.SOURCE:  # a data set of one's own keeps its SOURCE
        given.pop("SOURCE", None)
    model = one.params.MODEL if find_model(one.params.MODEL) else one.params.MODEL_ID
    return command(
        "run",
        model or one.params.MODEL,
        one.params.DATASET,
        **given,
        PROBES=one.params.PROBES,
        OUT=str(one.out.absolute()),
    )


def main(typed: Sequence[str] | None = None) -> int:
    """Run the command that these words give, by default those of the command line; the exit status."""
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {message}\n"  # without the line of code
    try:
        return depth_lib.main(typed, prog_name="depth-lib", standalone_mode=False) or 0
    except click.Abort:
        print("stopped; rerun the command to resume", file=sys.stderr)
        return 130
    except click.ClickException as problem:
        sys.exit(problem.format_message())
    except (ValueError, ArtifactError, RemoteError) as problem:
        sys.exit(str(problem))
    except BrokenPipeError:  # nobody reads the lines any longer, as after `| head`
        sys.stdout = None
        return 0
