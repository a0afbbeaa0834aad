"""Loads what users add from outside the package: an object of a module of theirs, named `module:object`.

A recipe, a format or an option names such an object where it could also name one that is shipped. The module is looked
for where Python looks, then in the current folder, then in further folders, such as that of the recipe. The processes
that this one starts look in the same folders: an environment variable has them.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from rstar2.errors import Failure, RStarError, UserError

FOLDERS = "RSTAR2_MODULE_FOLDERS"
"""The environment variable with the folders that were searched so far."""


def is_reference(name: str) -> bool:
    """Whether a name is meant as `module:object`, not as the name of something shipped."""
    return ":" in name


def search_in(folder: Path) -> None:
    """Makes modules in a folder loadable, in this process and in those that it starts later."""
    known = os.environ.get(FOLDERS, "").split(os.pathsep)
    os.environ[FOLDERS] = os.pathsep.join(dict.fromkeys([*filter(None, known), str(folder.resolve())]))


def load(reference: str, role: str, folders: Sequence[Path] = ()) -> Any:
    """Returns the object that `module:object` names. The object's name may be dotted, as in `module:Class.method`.

    Args:
        reference: the name as the user wrote it.
        role: what the object is for, as a noun phrase that starts a message: "the selection".
        folders: folders in which the module may be, besides the current one.

    Raises:
        UserError: the reference is malformed, there is no such module or object, or the module cannot be imported.
    """
    module_name, _, object_name = reference.partition(":")
    names = [*module_name.split("."), *object_name.split(".")]
    if module_name.endswith(".py") or not all(map(str.isidentifier, names)):
        raise UserError(
            f"{role} {reference!r} is not of the form module:object",
            "For the function my_function in my_module.py write my_module:my_function.",
        )
    found: Any = _import(module_name, f"{role} {reference}", folders)
    for name in object_name.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            public = [each for each, value in vars(found).items() if _is_defined_in(found, each, value)]
            raise UserError(
                f"{role} {reference}: {_place(found, module_name)} has no {name!r}",
                f"It has: {', '.join(public) or 'nothing'}.",
            ) from None
    return found


def load_function(
    reference: str, role: str, parameters: Sequence[str], folders: Sequence[Path] = ()
) -> Callable[..., Any]:
    """Returns the function that `module:object` names, which can be called with one value for each of `parameters`.

    Raises:
        UserError: as `load`; or the object cannot be called, or not with these arguments.
    """
    function = load(reference, role, folders)
    if not callable(function):
        raise UserError(
            f"{role} {reference} is not a function but {type(function).__name__}",
            f"Define it as def {reference.rpartition(':')[2]}({', '.join(parameters)}).",
        )
    check_parameters(function, reference, role, parameters)
    return function  # type: ignore[no-any-return]


def check_parameters(
    function: Callable[..., Any], reference: str, role: str, parameters: Sequence[str]
) -> None:
    """Raises a UserError if the function cannot be called with one value for each of `parameters`."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function written in C may have none
        return
    try:
        signature.bind(*parameters)
    except TypeError as error:
        raise UserError(
            f"{role} {reference} takes {_without_annotations(signature)} but is called with ({', '.join(parameters)}): "
            f"{error}",
            "Change its parameters; their names are free, and further ones need defaults.",
        ) from error


@contextmanager
def failures_named(reference: str, role: str) -> Iterator[None]:
    """An exception within the block, which calls a user's function, becomes a Failure that names function and cause.

    An RStarError stays as it is: the function says by it what is wrong.
    """
    try:
        yield
    except RStarError:
        raise
    except Exception as error:
        raise Failure(
            f"{role} {reference} failed: {_described(error)}",
            "Correct the function.",
        ) from error


def _import(module_name: str, subject: str, folders: Sequence[Path]) -> ModuleType:
    for folder in (Path.cwd(), *folders):
        search_in(folder)
    searched = [Path(folder) for folder in os.environ[FOLDERS].split(os.pathsep)]
    for folder in searched:
        # At the end: a file of the user's must not take the place of a module that we, or a library, import.
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise UserError(
                f"{subject}: importing {module_name} failed: {_described(error)}", "Install what it imports."
            ) from error
        places = " or ".join(dict.fromkeys(map(str, searched)))
        raise UserError(
            f"{subject}: there is no module {error.name}",
            f"Put {error.name.partition('.')[0]}.py into {places}, or install the package that has it.",
        ) from error
    except UserError as error:
        raise UserError(f"{error.message} ({_users_line(error)})", error.hint) from error
    except (Exception, SystemExit) as error:
        raise UserError(
            f"{subject}: importing {module_name} failed: {_described(error)}", "Correct the module."
        ) from error
    _check_not_shadowed(module_name.partition(".")[0], subject, searched)
    return module


def _check_not_shadowed(name: str, subject: str, searched: Sequence[Path]) -> None:
    """Raises a UserError if a searched folder has a file of that name, but Python imported another module."""
    files = [folder / each for folder in searched for each in (f"{name}.py", f"{name}/__init__.py")]
    mine = [file.resolve() for file in files if file.is_file()]
    imported = sys.modules[name].__file__
    if mine and (imported is None or Path(imported).resolve() not in mine):
        raise UserError(
            f"{subject}: {mine[0]} cannot be imported, because the name {name} is that of "
            f"{imported or 'a module of Python'}",
            "Give the file another name.",
        )


def _is_defined_in(owner: Any, name: str, value: Any) -> bool:
    """Whether a public name of a module or class was defined there, not imported."""
    if name.startswith("_") or inspect.ismodule(value):
        return False
    function = getattr(value, "function", value)  # a Tool has the function that it was made of
    if not inspect.ismodule(owner) or not (inspect.isclass(function) or inspect.isroutine(function)):
        return True
    return getattr(function, "__module__", owner.__name__) == owner.__name__


def _place(owner: Any, module_name: str) -> str:
    if inspect.ismodule(owner):
        return getattr(owner, "__file__", None) or f"the module {module_name}"
    return f"{getattr(owner, '__qualname__', repr(owner))} of {module_name}"


def _without_annotations(signature: inspect.Signature) -> str:
    names = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=names, return_annotation=inspect.Signature.empty))


def _users_line(error: UserError) -> str:
    """The last line outside of this package on the way to an error: what the user has to correct."""
    frames = traceback.extract_tb(error.__traceback__)
    package = str(Path(__file__).parent)
    at = [each for each in frames if not each.filename.startswith((package + os.sep, "<"))]
    return f"{at[-1].filename}, line {at[-1].lineno}"


def _described(error: BaseException) -> str:
    """An exception's type and text, and the line that raised it."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    at = [frame for frame in frames if not frame.filename.startswith("<frozen ")]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{text} ({error.filename}, line {error.lineno})" if error.filename not in text else text
    return f"{text} ({at[-1].filename}, line {at[-1].lineno})" if at else text
