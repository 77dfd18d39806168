"""One door each: how drkit writes files, prints, escapes, starts processes, reaches the network and runs code.

The syntax tree of every module is searched for the calls and imports that would be another door. Each exception is
listed below with its reason; a new one is a decision, not an accident.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import drkit

ROOT = Path(drkit.__file__).parent.parent


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of every module, by its path."""
    paths = (path for folder in ("drkit", "cli", "plugins") for path in sorted((ROOT / folder).rglob("*.py")))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


# Writers of a file or folder by its path. Each of these modules writes below a folder that `drkit.core.files` or the
# stage of a run puts in place when it is complete, or that a temporary folder of this process holds.
WRITERS = {
    "drkit/core/files.py": {
        "open",
        "touch",
        "unlink",
        "write_text",
        "replace",
        "rename",
        "rmtree",
        "link",
        "copy2",
        "fdopen",
    },
    "drkit/core/file_chunks.py": {"replace"},  # a finished chunk gets its hash as part of its name
    "drkit/commands/improve.py": {"copytree"},  # the encoder folder, into one that replaces the output
    "drkit/commands/prune.py": {"unlink"},  # files that the manifest has named as pruned
    "cli/drkit_cli/terminal.py": {"fdopen"},  # standard output itself, while descriptor 1 leads to standard error
    "drkit/train/resuming.py": {"open", "rmtree", "copytree"},  # checkpoints, with hashes of their files
    "drkit/data/arrays.py": {"open", "rmtree"},  # columns, beside the file that they become
    "drkit/data/generation.py": {"open", "truncate", "rmtree", "unlink"},  # lines that a resumed generation keeps
    "drkit/data/counts.py": {
        "open",
        "tofile",
        "touch",
        "rmtree",
    },  # n-grams, on the way to a table
    "drkit/data/merging.py": {"tofile", "open", "unlink"},  # sorted keys, on the way to a table
    "drkit/data/vocabulary.py": {"open", "save_pretrained"},
    "drkit/data/writing.py": {"rmtree"},
    "drkit/encoders/cross_encoder.py": {"save_pretrained"},
    "drkit/encoders/export.py": {"save_file", "save_pretrained"},
    "drkit/encoders/learned_pooling.py": {"save_file", "save_pretrained"},
    "drkit/encoders/token_weights.py": {"save_file"},
    "drkit/commands/encoder_evaluation.py": {"rmtree"},
    "drkit/charts.py": {"savefig"},
    "drkit/runs/execute.py": {"rmtree", "unlink", "rename", "copytree", "symlink_to"},  # puts stages in place
    "drkit/core/processes.py": {"write_text"},  # Linux's own counter of this process, not a file
    "drkit/runs/making/retriever.py": {"rmtree", "replace", "copytree"},
    "drkit/runs/making/pretrain.py": {"copytree"},  # links a kept checkpoint into the folder of its stage
    "drkit/testing/encoders.py": {"save_pretrained"},  # into a temporary folder
    "drkit/runs/making/queries.py": {"rmtree"},
    "drkit/search/flat.py": {"open"},
    "drkit/train/vector_columns.py": {"open_memmap"},  # the temporary file of `replacing`, in rows of any order
    "drkit/train/checkpoints.py": {"save_pretrained", "save_file", "copyfile", "copytree"},
    "drkit/train/refresh.py": {"rmtree", "unlink"},
    "drkit/train/logs.py": {"unlink"},
    "drkit/train/trainer.py": {"save_file"},
    "drkit/train/validation.py": {"unlink"},
}
WRITING = {
    *("write_text", "write_bytes", "touch", "unlink", "symlink_to", "hardlink_to", "truncate", "tofile", "savefig"),
    *("rmtree", "move", "copy2", "copyfile", "copytree", "link", "symlink", "savetxt", "savez", "savez_compressed"),
    *("save_file", "save_pretrained", "save_to_disk", "write_index", "write_feather", "to_parquet", "to_csv", "OSFile"),
    *("ParquetWriter", "FileIO", "NamedTemporaryFile", "mkstemp", "removedirs", "open_memmap"),
}
MODULES_THAT_WRITE = {"os", "shutil", "np", "numpy", "torch"}  # whose `rename`, `replace`, `remove`, `save` write


def calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str, str]]:
    """Yield every call with the name that is called and what comes before the dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Attribute):
                yield node, function.attr, ast.unparse(function.value)
            elif isinstance(function, ast.Name):
                yield node, function.id, ""


def imports(tree: ast.AST) -> set[str]:
    """The modules that a tree imports, anywhere in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("import_extra", "import_module"):
            found |= {argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)}
    return found


def importers(*modules: str) -> set[str]:
    """The files that import a module, or something from it."""
    return {
        name
        for name, tree in trees().items()
        if any(each == module or each.startswith(f"{module}.") for each in imports(tree) for module in modules)
    }


def replaced(tree: ast.AST) -> set[int]:
    """The calls within `with replacing(..) as name` that write to that name, or to a file opened by it."""
    found = set()
    for block in (node for node in ast.walk(tree) if isinstance(node, ast.With)):
        names: set[str] = set()
        for item in (item for node in ast.walk(block) if isinstance(node, ast.With) for item in node.items):
            opener = ast.unparse(item.context_expr).split("(")[0]
            if item.optional_vars and (opener in ("replacing", "replacing_folder") or names & used(item.context_expr)):
                names |= used(item.optional_vars)
        found |= {id(node) for node in ast.walk(block) if isinstance(node, ast.Call) and names & used(node)}
    return found


def used(tree: ast.AST) -> set[str]:
    """The names in an expression."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def is_writing(call: ast.Call, name: str, owner: str) -> bool:
    """Whether a call writes, moves or removes a file or folder by its path."""
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    if name in ("open", "fdopen"):
        arguments = arguments if owner else arguments[1:]
        modes = [a.value for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        return any(len(mode) <= 4 and set(mode) & set("wax+") and not set(mode) - set("rwaxbt+") for mode in modes)
    if name in ("rename", "replace", "remove", "save", "dump", "truncate"):  # of a path: one argument; of a text: two
        return owner in MODULES_THAT_WRITE or (name in ("rename", "replace", "truncate") and len(arguments) == 1)
    return name in WRITING and (bool(owner) or name in ("save_file", "rmtree", "copytree", "copyfile", "move"))


def test_files_are_written_through_one_door():
    found = {}
    for name, tree in trees().items():
        through = replaced(tree)
        for call, called, owner in calls(tree):
            if is_writing(call, called, owner) and id(call) not in through and called not in WRITERS.get(name, ()):
                found.setdefault(name, set()).add(f"{call.lineno}: {ast.unparse(call)[:80]}")
    assert not found, "write with write_text, replacing or replacing_folder of drkit.core.files"


def test_arrow_files_are_opened_through_one_door():
    """A damaged file must be validated before anything reads its values."""
    openers = {"memory_map", "open_file", "open_stream", "RecordBatchFileReader", "read_ipc_file", "read_feather"}
    found = {
        f"{name}:{call.lineno}"
        for name, tree in trees().items()
        for call, called, owner in calls(tree)
        if called in openers and (owner.startswith("pa") or not owner) and name != "drkit/data/arrays.py"
    }
    assert not found, "open with read_batches, read_arrow or read_schema of drkit.data.arrays"


def test_the_command_line_prints_through_one_door():
    found = {
        f"{name}:{call.lineno} {owner}.{called}"
        for name, tree in trees().items()
        for call, called, owner in calls(tree)
        if (called == "print" and not owner)
        or called in ("echo_via_pager", "secho", "pprint")
        or (called == "echo" and owner == "click" and name != "cli/drkit_cli/terminal.py")
        or (called == "Console" and name != "cli/drkit_cli/render.py")
    }
    assert not found, "print with drkit_cli.terminal.echo or drkit_cli.render.console"
    streams = {
        name
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.stdout", "sys.stderr", "sys.__stdout__")
    }
    # main closes a broken pipe; docstrings and arguments answer their parent process, in JSON; files flushes before it
    # writes a result to standard output; registry keeps what plugins print when they are imported from it
    assert streams <= {f"cli/drkit_cli/{name}.py" for name in ("terminal", "render", "main")} | {
        *(f"drkit/{name}.py" for name in ("train/arguments", "core/files", "core/registry")),
        "plugins/drkit_pydocs/docstrings.py",
    }


def test_text_is_escaped_in_one_place():
    assert importers("html", "xml.sax.saxutils", "markupsafe") == {"drkit/core/escaping.py"}
    tags = {
        name
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr) and any(tag in ast.unparse(node) for tag in ("</", "<p>", "<td", "<img"))
    }
    # which looks for the tags of TREC's topics
    assert tags <= {"drkit/data/topics.py"}


def test_no_code_comes_from_data():
    found = {
        f"{name}:{call.lineno} {ast.unparse(call)[:80]}"
        for name, tree in trees().items()
        for call, called, owner in calls(tree)
        if (called in ("eval", "exec", "compile", "__import__") and not owner)
        or (called in ("load", "jit.load") and owner in ("torch", "torch.jit"))
        or (called == "load" and owner in ("np", "numpy") and "allow_pickle=False" not in ast.unparse(call))
        or any(keyword.arg == "allow_pickle" and ast.unparse(keyword.value) != "False" for keyword in call.keywords)
        or any(keyword.arg == "shell" for keyword in call.keywords)
        or (owner == "os" and called in ("system", "popen"))
    }
    assert not found
    # of objects that the contract tests have just made, to see that workers can have them
    assert importers("pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "code") <= {
        "drkit/testing/specs.py",
    }


def test_processes_are_started_in_one_place():
    # engine: tasks side by side; docstrings: Python itself, isolated, reads source files; prepare: to try
    # TrainingArguments, without torch here; testing: to see what a module imports
    assert importers("subprocess", "pty", "multiprocessing") <= {
        "drkit/core/engine.py",
        "plugins/drkit_pydocs/docstrings.py",
        "drkit/runs/prepare.py",
        "drkit/testing/specs.py",
    }
    starts = {
        f"{name}:{call.lineno}"
        for name, tree in trees().items()
        for call, called, owner in calls(tree)
        if owner == "os" and called.startswith(("exec", "spawn", "fork", "posix_spawn"))
    }
    assert not starts


def test_the_network_is_reached_through_libraries_that_were_asked_for():
    clients = (
        "requests",
        "urllib.request",
        "urllib3",
        "http",
        "httpx",
        "aiohttp",
        "socket",
        "ftplib",
        "smtplib",
        "ssl",
    )
    assert importers(*clients) == set()
    # a model or data set that a setting or an argument names, from the hub or from ir_datasets' sources
    assert importers("huggingface_hub") <= {
        "drkit/core/hub.py",
        "drkit/core/loading.py",
        "drkit/commands/card.py",  # the form of the metadata; uploads when asked, and only then
    }
    # of a plugin: `--engine ray`
    assert importers("ray") == {"plugins/drkit_ray/engine.py"}
    asked = {
        name
        for name, tree in trees().items()
        for _, called, owner in calls(tree)
        if called in ("load_dataset", "urlretrieve", "hf_hub_download", "download")
        or (called == "load" and owner == "ir_datasets")
    }
    assert asked <= {"drkit/data/hf.py", "drkit/data/irds.py"}


@pytest.mark.parametrize(
    "code",
    [
        "open('x', 'w')",
        "Path('x').open('ab')",
        "Path('x').write_text('y')",
        "shutil.move('a', 'b')",
        "os.replace('a', 'b')",
        "Path('a').rename('b')",
        "np.save('a', b)",
        "torch.save(a, 'b')",
        "save_file(a, 'b')",
        "model.save_pretrained('a')",
        "pa.OSFile('a', 'wb')",
    ],
)
def test_another_way_to_write_is_seen(code):
    tree = ast.parse(code)
    assert any(is_writing(*each) for each in calls(tree)), code
    assert not replaced(tree)
    inside = ast.parse(
        f"with replacing(p) as a, a.open('w') as file:\n    {code.replace(chr(39) + 'x' + chr(39), 'a')}"
    )
    assert replaced(inside)


@pytest.mark.parametrize("code", ["text.replace('a', 'b')", "open('x')", "path.open('rb')", "index.save(f)"])
def test_reading_is_not_writing(code):
    assert not any(is_writing(*each) for each in calls(ast.parse(code)))
