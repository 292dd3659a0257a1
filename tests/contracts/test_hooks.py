"""Every hook is documented with its exact signature."""

from __future__ import annotations

import ast
import re

import throttlekit
from contracts.tree import MODULES, ROOT, parsed, read
from throttlekit import hookspecs


def _specs() -> dict[str, ast.FunctionDef]:
    return {
        node.name: node
        for node in parsed("throttlekit.hookspecs").body
        if isinstance(node, ast.FunctionDef) and "hookspec" in ast.unparse(node.decorator_list[0])
    }


def test_each_hook_has_a_heading_with_its_signature() -> None:
    """docs/hooks.md has one heading for each hook, with its signature, in the order of the module."""
    signatures = []
    for name, spec in _specs().items():
        assert spec.returns is not None
        signatures.append(f"{name}({ast.unparse(spec.args)}) -> {ast.unparse(spec.returns)}")
    assert re.findall(r"^## `(.*)`$", read(ROOT / "docs" / "hooks.md"), re.MULTILINE) == signatures


def test_each_hook_documents_when_it_is_called() -> None:
    """A hook's docstring begins with the time of the call, and docs/hooks.md has the same sentence."""
    docs = read(ROOT / "docs" / "hooks.md")
    for name, spec in _specs().items():
        first = (ast.get_docstring(spec) or "").splitlines()[0]
        assert first.startswith("Called "), name
        assert first in docs, name


def test_each_hook_has_a_shipped_user() -> None:
    """Every hook is used by a plugin that ships with throttlekit."""
    plugins = [
        parsed(name)
        for name in MODULES
        if name.startswith(("throttlekit._engine.plugins", "throttlekit.metrics.", "throttlekit.plugins"))
    ]
    used = {node.name for plugin in plugins for node in ast.walk(plugin) if isinstance(node, ast.FunctionDef)}
    assert set(_specs()) <= used


def test_each_field_of_an_event_is_documented() -> None:
    """docs/hooks.md lists exactly the fields of the events, in the order of the hooks."""
    events = [node for node in parsed("throttlekit.hookspecs").body if isinstance(node, ast.ClassDef)]
    fields = [
        node.name if isinstance(node, ast.FunctionDef) else ast.unparse(node.target)
        for event in events
        for node in event.body
        if isinstance(node, (ast.AnnAssign, ast.FunctionDef))
    ]
    assert re.findall(r"^\| `event\.(\w+)` \|", read(ROOT / "docs" / "hooks.md"), re.MULTILINE) == fields


def test_no_hook_has_a_private_type() -> None:
    """Users can import every type in a hook's arguments and events from a public module."""
    public = {*throttlekit.__all__, *hookspecs.__all__, "Store"}
    builtin = {"str", "int", "float", "None", "tuple", "Iterable"}
    module = parsed("throttlekit.hookspecs")
    events = [node for node in module.body if isinstance(node, ast.ClassDef)]
    annotations = [node.annotation for event in events for node in event.body if isinstance(node, ast.AnnAssign)]
    for spec in _specs().values():
        annotations += [arg.annotation for arg in spec.args.args if arg.annotation is not None]
        annotations += [spec.returns] if spec.returns is not None else []
    named = {node.id for annotation in annotations for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    assert named - public - builtin == set()
