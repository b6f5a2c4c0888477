"""Prints the reference of the Python module as HTML: signatures of its sources and stubs, docstrings of its Python and Rust
sources. Argument: crates/python. Fails if a public name has no entry."""

import ast
import html
import inspect
import re
import sys
from pathlib import Path

FOLDER = Path(sys.argv[1])
# In this order; names of functions get the prefix.
SOURCES = {"_fipsee.pyi": "", "aio.py": "aio.", "aio_port.py": "aio_port.", "_errors.py": ""}


def rust_docs():
    """The comments of Rust's types and methods, which are the docstrings of the module that is built from them."""
    docs = {}
    item = re.compile(r"((?: *///.*\n)+)(?: *#\[.*\n)*.*?\b(fn|struct) (\w+)|^impl (\w+)", re.M)
    for name in ("disk.rs", "doorbells.rs", "frame.rs", "list.rs", "memory.rs", "offload.rs", "port.rs"):
        owner = ""
        for comment, kind, member, impl in item.findall((FOLDER / "src" / name).read_text()):
            owner = impl or owner
            docs.setdefault(member if kind == "struct" else f"{owner}.{member}", re.sub(r"^ *///", "", comment, flags=re.M))
    return docs


def paragraphs(text):
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        text = re.sub(r"`(.*?)`", r"<code>\1</code>", html.escape(paragraph, quote=False))
        print(f"<pre>{text}</pre>" if text.startswith(" ") else f"<p>{text}</p>")


def entry(node, key, docs):
    """A heading, the signature and the docstring of a class, function or method."""
    is_class = isinstance(node, ast.ClassDef)
    doc = ast.get_docstring(node) or docs.get(key, "")
    if is_class:
        signature, level = ast.unparse(ast.ClassDef(node.name, node.bases, [], [], [])).rstrip(":"), 2
    else:
        node.args.args = [argument for argument in node.args.args if argument.arg not in ("self", "cls")]
        is_property = any(getattr(decorator, "id", "") == "property" for decorator in node.decorator_list)
        arguments = "" if is_property else f"({ast.unparse(node.args)})"
        begin = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
        signature, level = f"{begin}{key}{arguments} -> {ast.unparse(node.returns)}", 3
    print(f'<h{level} id="{key}">{key}</h{level}>\n<pre><code>{html.escape(signature)}</code></pre>')
    paragraphs(doc)


def main():
    module = ast.parse((FOLDER / "python/fipsee/__init__.py").read_text())
    assigned = [node for node in module.body if isinstance(node, ast.Assign)]
    public = next(ast.literal_eval(node.value) for node in assigned if node.targets[0].id == "__all__")
    print("<h1>Python: fipsee</h1>")
    paragraphs(ast.get_docstring(module))
    docs, seen = rust_docs(), set()
    for source, prefix in SOURCES.items():
        for node in ast.parse((FOLDER / "python/fipsee" / source).read_text()).body:
            name = getattr(node, "name", "")
            if name not in public:
                continue
            seen.add(name)
            entry(node, name if isinstance(node, ast.ClassDef) else prefix + name, docs)
            for member in node.body if isinstance(node, ast.ClassDef) else []:
                # A disk is made by `open`, which is another name of its class.
                shown = "open" if getattr(member, "name", "") == "__new__" else getattr(member, "name", "_")
                if not shown.startswith("_"):
                    entry(member, f"{name}.{shown}", docs)
    missing = set(public) - seen - {"aio", "aio_port", "aopen", "aopen_port"}
    sys.exit(f"no entry for {sorted(missing)}" if missing else 0)


main()
