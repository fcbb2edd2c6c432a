"""A hook of MkDocs: write the parts of the reference that are made from the code when the docs are built.

A comment on a page stands for such a part. Its first word is a function of PARTS, and the others are its
arguments: `### <!-- contract lease_many -->`, `<!-- command dead ls -->`. What it says of Python
is a directive, `::: leasequeue.Worker`, for mkdocstrings, which shows the docstring. In a row of a table
that begins with a key (`P:queue`) or a constant (`leasequeue.queue.cleaning.STEP`), the empty cells after
it are filled in; a row of a seed system ends with the tests that hold it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from mkdocs.structure.files import File

from benchmarks.report import read
from leasequeue import errors
from leasequeue.cli.app import COMMANDS, EXIT_CODES, GROUPS
from leasequeue.cli.app import load as load_command
from leasequeue.dashboard.rights import ACTIONS
from leasequeue.keys import KEYS, MADE_KEYS
from leasequeue.queue.findings import Problem
from leasequeue.states import DETAILS, FIELDS, ITEM_EVENTS, EventKind
from leasequeue.wire import scripts, server_errors
from leasequeue.wire.access import CONNECTIONS, Role
from lua.compose.composer import entries_of, sections_of
from lua.compose.linker import split
from tests.seeds.markers import marked_tests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
#: The public modules.
MODULES = (
    "leasequeue",
    "leasequeue.errors",
    "leasequeue.views",
    "leasequeue.embedded",
    "leasequeue.flow",
    "leasequeue.telemetry",
    "leasequeue.testing",
    "leasequeue.fastapi",
    "leasequeue.dashboard",
    "leasequeue.outbox",
    "leasequeue.spark",
)
RESULTS = ROOT / "benchmarks" / "results"
#: The line for readers of the unbuilt page.
_NOTE = re.compile(r"^> In a checkout, .*\n\n", re.MULTILINE)
_PART = re.compile(r"<!-- (\w+)((?: [\w.-]+)*) -->")
_KEY = re.compile(r"^\| `P:([^`]+)` \| \| \|", re.MULTILINE)
_ROW = re.compile(r"^\| ([A-Z]{3}-[A-Z]\d+) \|.*\|$", re.MULTILINE)
_CONSTANT = re.compile(r"^\| `([\w.]+)\.([A-Z_]+)` \| \|", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Put the plot of the simulated loads beside the page that shows it."""
    plot = RESULTS / "autoscale.png"
    files.append(File.generated(config, "explanation/autoscale.png", abs_src_path=str(plot)))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the generated parts into the text of a page."""
    text = _PART.sub(lambda match: PARTS[match[1]](*match[2].split()), _NOTE.sub("", markdown))
    text = _ROW.sub(lambda match: f"{match[0]} {_marked(marked_tests().get(match[1], ()))} |", text)
    text = _KEY.sub(lambda match: f"| `P:{match[1]}` | {' | '.join(_key(match[1]))} |", text)
    return _CONSTANT.sub(lambda match: f"| `{match[1]}.{match[2]}` | {_constant(match[1], match[2])} |", text)


def dashboard_rights() -> str:
    """Return the table of what viewers of the dashboard may be permitted."""
    return "\n".join(_table(["right", "permits to"], ([f"`{name}`", text] for name, text in ACTIONS.items())))


def names(module: str, *homes: str) -> str:
    """Write a directive for each name in `__all__` of a module, or for those that it imports from `homes`."""
    found = homes_of(module)
    public = importlib.import_module(module)
    return "\n\n".join(
        # A module of the same name would hide a function, such as `leasequeue.fastapi.lifespan`.
        _directive(
            found[name] if hasattr(public, "__path__") and find_spec(f"{module}.{name}") else module,
            name,
            getattr(public, name),
        )
        for name in public.__all__
        if not homes or any(f"{found[name]}.".startswith(f"{home}.") for home in homes)
    )


def homes_of(module: str) -> dict[str, str]:
    """Return the modules that the names of a module are imported from; of one that it defines, itself."""
    public = importlib.import_module(module)
    nodes = ast.walk(ast.parse(inspect.getsource(public)))
    imported = {
        alias.asname or alias.name: node.module
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    return {name: imported.get(name, module) for name in public.__all__}


def parts(path: str) -> str:
    """Return a directive for the class of each attribute that a class declares, such as `queue.results`."""
    module, _, name = path.rpartition(".")
    owner = getattr(importlib.import_module(module), name)
    classes = [one for one in get_type_hints(owner).values() if isinstance(one, type) and one is not owner]
    return "\n\n".join(_directive(one.__module__, one.__name__, one) for one in classes)


def errors_tree() -> str:
    """Return the tree of errors, as their module's docstring has it."""
    return (inspect.getdoc(errors) or "").partition("\n\n")[2]


def server_words() -> str:
    """Return the table of the server's words that are translated into an error."""
    words: dict[str, list[str]] = {}
    for word, kind in server_errors.BY_WORD:
        words.setdefault(kind.__name__, []).append(word)
    rows = ([f"`{kind}`", _marked(them)] for kind, them in words.items())
    return "\n".join(_table(["error", "what the server says"], rows))


def contract(name: str) -> str:
    """Return the heading of a script and its contract: keys, arguments, reply, cost, limits and events."""
    script = scripts.load()[name]
    header, _ = split(source_of(name))
    sections = sections_of(name, header)
    arguments: list[list[str]] = []
    for place, (argument, kind, meaning) in enumerate(entries_of(name, sections["Arguments"]), 1):
        arguments.append([f"`ARGV[{place}{'…' * (kind == 'rest')}]`", f"`{argument}`", kind, meaning])
    keys = (f"`P:{key}:<session>`" if key == "inbox" else f"`P:{key}`" for key in script.keys)
    facts = [f"**Keys**, in this order: {', '.join(keys)}"]
    facts += [
        f"**{title}**: {' '.join(line.strip() for line in sections[title])}"
        for title in ("Reply", "Cost", "Limits")
    ]
    if script.events:
        facts.append("**Events**: " + ", ".join(f"`{kind}`" for kind in EventKind if kind in script.events))
    return "\n".join(
        [
            f"`{name}`\n",
            *_table(["argument", "", "kind", "meaning"], arguments),
            "",
            *(f"- {fact}" for fact in facts),
        ]
    )


def commands() -> str:
    """Return the commands that the scripts send, sorted."""
    found = {command for script in scripts.load().values() for command in script.commands}
    return textwrap.fill(", ".join(f"`{command}`" for command in sorted(found)), 110) + "."


def command_list() -> str:
    """Return a table of the commands of each group, with a link to each, or to the first of several."""
    tables = []
    for title, group in GROUPS.items():
        rows = []
        for name, one in group.items():
            first = next(iter(getattr(load_command(name), "commands", {"": None})))
            link = "-".join(filter(None, ("leasequeue", name, first)))
            rows.append([f"[`{name}`](#{link})", _prose(one.help)])
        tables.append("\n".join(_table([title, ""], rows)))
    return "\n\n".join(tables)


def command(*words: str) -> str:
    """Return the part about a command, with the words of its `--help`."""
    below: Any = load_command(words[0])
    for word in words[1:]:
        below = below.commands[word]
    parameters = [one for one in below.params if not getattr(one, "hidden", False)]
    name = " ".join(("leasequeue", *words))
    usage = " ".join([name, *(_argument(one) for one in parameters if one.param_type_name == "argument")])
    text = [f"## {name}", f"`{usage}`", _prose(inspect.cleandoc(below.help))]
    shared = {"--url", "--json"} if COMMANDS[words[0]].epilog else set()
    options = [one for one in parameters if one.param_type_name == "option" and not shared & {*one.opts}]
    if options:
        text.append("\n".join(_table(["option", ""], map(_option, options))))
    if below.epilog and below.epilog != EXIT_CODES:
        text.append(_prose(below.epilog))
    return "\n\n".join(text)


def _argument(one: Any) -> str:
    """Return an argument as a usage line has it."""
    name = one.metavar or one.name.upper()
    return f"{name if one.required else f'[{name}]'}{'...' if one.nargs == -1 else ''}"


def _option(one: Any) -> list[str]:
    """Return the cells of an option: its name with the value, and its help, bounds and default."""
    takes = "" if one.is_flag else f" {one.metavar or one.name.upper()}"
    said = [one.help]
    if hasattr(one, "type_descriptor"):
        parser = one.type_descriptor.parameter_info.parser
    else:  # before typer 0.29
        parser = getattr(one.type, "func", None)
    bounds = getattr(parser, "keywords", {})
    lowest, highest = bounds.get("minimum"), bounds.get("maximum")
    if highest is not None:
        said.append(f"From {lowest:,} to {highest:,}.")
    elif lowest is not None:
        said.append(f"At least {lowest:,}.")
    if one.required:
        said.append("Required.")
    elif one.default and not one.is_flag:
        said.append(f"Default: {one.default}{' seconds' * (one.metavar == 'DURATION')}.".replace(".0 ", " "))
    return [f"`{one.opts[-1]}{takes}`".replace("|", "\\|"), _prose(" ".join(said)).replace("|", "\\|")]


def _prose(text: str) -> str:
    """Return a text of `--help` with its options marked as code."""
    return re.sub(r"(?<![\w`-])--[a-z-]+", r"`\g<0>`", text)


def sent() -> str:
    """Return the table of the commands that are sent outside of the scripts."""
    rows = [
        [
            f"`{name.replace('|', ' ').upper()}`",
            one.purpose,
            one.without,
            ", ".join(role for role in Role if role in one.roles),
        ]
        for name, one in CONNECTIONS.items()
    ]
    return "\n".join(_table(["command", "needed to", "if it is forbidden", "roles"], rows))


def fields() -> str:
    """Return the table of the fields of an event."""
    described = (FIELDS | DETAILS).items()
    return "\n".join(_table(["field", "meaning"], ([f"`{name}`", meaning] for name, meaning in described)))


def events() -> str:
    """Return the table of the events of items: the scripts that emit each, the states before and after it."""
    rows = []
    for kind in ITEM_EVENTS:
        after = f"{kind.after}; with `due`: scheduled" if kind.can_delay else kind.after
        before = "; ".join(filter(None, (", ".join(kind.before), kind.note)))
        rows.append([f"`{kind}`", _emitters(kind), before, after, _marked(kind.fields)])
    return "\n".join(_table(["`what`", "emitted by", "from", "to", "fields"], rows))


def others() -> str:
    """Return the table of the events of the queue and of its workers."""
    rows = [
        [f"`{kind}`", _emitters(kind), f"{kind.subject}", _marked(kind.fields), kind.note]
        for kind in EventKind
        if kind not in ITEM_EVENTS
    ]
    return "\n".join(_table(["`what`", "emitted by", "of", "fields", ""], rows))


def silent() -> str:
    """Return the table of the scripts that emit no event, with the first sentence of the header of each."""
    rows = []
    for name, script in scripts.load().items():
        if not script.events:
            header = " ".join(split(source_of(name))[0])
            rows.append([f"[`{name}`](protocol.md#{name})", header.partition(". ")[0] + "."])
    return "\n".join(_table(["script", "what it does"], rows))


def source_of(name: str) -> str:
    """Return the text of the file of a script."""
    [file] = (ROOT / "lua").rglob(f"{name}.lua")
    return file.read_text()


def problems() -> str:
    """Return the table of what a check can find."""
    rows = [[f"`{one}`", one.found, one.repair or f"not repaired: {one.advice}"] for one in Problem]
    return "\n".join(_table(["problem", "found", "done"], rows))


def loads(which: str) -> str:
    """Return the table of a set of simulated loads: what our rule reached on each, and the others."""
    rows = read(RESULTS / "autoscale.md")
    chosen = which.replace("_", " ")
    found = {(row.what, row.who): row for row in rows if row.setting.get("set") == chosen}
    lines = []
    for load in dict.fromkeys(what for what, _ in found):
        cells = [load]
        for who in ("leasequeue", "redis-work-queue", "KEDA, by length"):
            row = found[load, who]
            cells += [f"{row.value:.1f} %", f"{row.more['x_fewest']:.2f}"]
            if who == "leasequeue":
                cells += [f"{row.more['requests_per_hour']:.0f}", f"{row.more['longest_s']:,.0f} s"]
        lines.append(cells)
    titles = ["load", "kept", "x fewest", "requests/h", "longest wait"]
    titles += ["redis-work-queue: kept", "x fewest", "KEDA by length: kept", "x fewest"]
    return "\n".join(_table(titles, lines))


def _directive(module: str, name: str, thing: object) -> str:
    """Return the directive for a name; a class also shows what it inherits from private ones."""
    bases = inspect.getmro(thing)[1:-1] if inspect.isclass(thing) else ()
    hidden = any(base.__module__.startswith("leasequeue") and not _is_public(base) for base in bases)
    return f"::: {module}.{name}" + "\n    options:\n      inherited_members: true" * hidden


def _is_public(one: type) -> bool:
    return any(getattr(importlib.import_module(module), one.__name__, None) is one for module in MODULES)


def _emitters(kind: EventKind) -> str:
    return _marked(script.name for script in scripts.load().values() if kind in script.events)


def _marked(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


#: The functions that write the parts, by the first word of the comment; the others are their arguments.
PARTS: dict[str, Callable[..., str]] = {
    one.__name__: one
    for one in (
        dashboard_rights,
        names,
        parts,
        errors_tree,
        server_words,
        contract,
        commands,
        command_list,
        command,
        sent,
        fields,
        events,
        others,
        silent,
        problems,
        loads,
    )
}


def _key(name: str) -> tuple[str, str]:
    return {**KEYS, **MADE_KEYS}[name.replace("inbox:<session>", "inbox")]


def _constant(module: str, name: str) -> str:
    return f"{getattr(importlib.import_module(module), name):,}"


def _table(titles: list[str], rows: Iterable[list[str]]) -> list[str]:
    lines = [titles, ["---"] * len(titles), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]
