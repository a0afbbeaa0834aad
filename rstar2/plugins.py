"""Loads objects from users' own modules. The name of a user's object has the form `module:object`.

A recipe, a format or an option can name a user's object in place of a shipped object. The module is searched for in
Python's path, then in the current folder, then in further folders, such as the recipe's folder. An environment variable
lists the folders, so that child processes search the same folders.
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
"""The environment variable that lists the folders in which modules are searched for."""


def is_reference(name: str) -> bool:
    """Whether a name has the form `module:object`, and is not the name of a shipped object."""
    return ":" in name


def search_in(folder: Path) -> None:
    """Adds a folder to the folders in which this process, and later child processes, search for modules."""
    known = os.environ.get(FOLDERS, "").split(os.pathsep)
    os.environ[FOLDERS] = os.pathsep.join(dict.fromkeys([*filter(None, known), str(folder.resolve())]))


def load(reference: str, role: str, folders: Sequence[Path] = ()) -> Any:
    """Returns the object that `module:object` names. The object's name may be dotted, as in `module:Class.method`.

    Args:
        reference: the name as the user wrote it.
        role: the purpose of the object, as the first words of messages, such as "the selection".
        folders: further folders in which the module may be.

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
    loaded: Any = _import(module_name, f"{role} {reference}", folders)
    for name in object_name.split("."):
        try:
            loaded = getattr(loaded, name)
        except AttributeError:
            public = [each for each, value in vars(loaded).items() if _is_defined_in(loaded, each, value)]
            raise UserError(
                f"{role} {reference}: {_place(loaded, module_name)} has no {name!r}",
                f"It has: {', '.join(public) or 'nothing'}.",
            ) from None
    return loaded


def load_function(
    reference: str, role: str, parameters: Sequence[str], folders: Sequence[Path] = ()
) -> Callable[..., Any]:
    """Returns the function that `module:object` names, which can be called with one value for each of `parameters`.

    Raises:
        UserError: see `load`; or the object cannot be called with these arguments.
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
    """Raises UserError if the function cannot be called with one value for each of `parameters`."""
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
            "Change its parameters. Parameters may have any names, and additional parameters need defaults.",
        ) from error


@contextmanager
def failures_named(reference: str, role: str) -> Iterator[None]:
    """Convert an exception of a user's function to a Failure that names the function and the cause.

    The `with` block has to call the user's function. An RStarError is passed on, because it already explains the fault.
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
        # At the end, so that a user's file does not replace a module that this package or a library imports.
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise UserError(
                f"{subject}: importing {module_name} failed: {_described(error)}",
                "Install the missing package.",
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
    """Raises UserError if a searched folder has a module with this name, but Python imported another module."""
    files = [folder / each for folder in searched for each in (f"{name}.py", f"{name}/__init__.py")]
    users_files = [file.resolve() for file in files if file.is_file()]
    imported = sys.modules[name].__file__
    if users_files and (imported is None or Path(imported).resolve() not in users_files):
        raise UserError(
            f"{subject}: {users_files[0]} cannot be imported, because {name} is also the name of "
            f"{imported or 'a module of Python'}",
            "Give the file another name.",
        )


def _is_defined_in(owner: Any, name: str, value: Any) -> bool:
    """Whether a public name of a module or class is defined in this module or class, and not imported from another
    module.
    """
    if name.startswith("_") or inspect.ismodule(value):
        return False
    function = getattr(value, "function", value)  # a Tool has the function from which it was made
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
    """Returns the line that the user has to correct: in an error's traceback, the last line outside of this package."""
    frames = traceback.extract_tb(error.__traceback__)
    package = str(Path(__file__).parent)
    at = [each for each in frames if not each.filename.startswith((package + os.sep, "<"))]
    return f"{at[-1].filename}, line {at[-1].lineno}"


def _described(error: BaseException) -> str:
    """Returns an exception's type and message, and the line that raised it."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    at = [frame for frame in frames if not frame.filename.startswith("<frozen ")]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{text} ({error.filename}, line {error.lineno})" if error.filename not in text else text
    return f"{text} ({at[-1].filename}, line {at[-1].lineno})" if at else text
