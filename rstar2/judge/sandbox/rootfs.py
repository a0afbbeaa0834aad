"""Lists the files that are visible in a jail: the interpreter, libraries, system files, and a few generated files."""

from __future__ import annotations

import os
import site
import sys
import sysconfig

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    "/etc/alternatives",
    "/etc/fonts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/timezone",
)
PROGRAM_UID = 1000
ENVIRONMENT = {
    "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
    "HOME": "/box",
    "USER": "program",
    "LANG": "C.UTF-8",
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "MPLBACKEND": "Agg",
    "MPLCONFIGDIR": "/tmp",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Otherwise pyarrow, which pandas imports, starts a thread, and a process with threads must not be forked.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""All environment variables of zygotes and of programs.

Zygotes and programs get no variable from the worker's environment.
"""


def library_paths() -> list[str]:
    """Returns the sys.path that programs get: the standard library and installed packages.

    The returned list contains no packages that are installed in editable mode.
    """
    packages = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if sys.prefix == sys.base_prefix:
        packages += site.getsitepackages()
    standard = [entry for entry in sys.path if _is_standard_library(entry)]
    return list(dict.fromkeys(standard + [path for path in packages if os.path.isdir(path)]))


def _is_standard_library(entry: str) -> bool:
    library = os.path.realpath(sysconfig.get_path("stdlib"))
    resolved = os.path.realpath(entry)
    if "site-packages" in resolved or "dist-packages" in resolved:
        return False
    return resolved.startswith(library) or entry.endswith(
        f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
    )


def visible_paths() -> tuple[list[str], list[tuple[str, str]]]:
    """Returns the paths to bind-mount into the jail, and the symbolic links to create as pairs of link and target.

    A path below another path of the list is left out.
    """
    links, paths = [], []
    for entry in _SYSTEM:
        if os.path.islink(entry):
            links.append((entry, os.readlink(entry)))
        elif os.path.isdir(entry):
            paths.append(entry)
    paths += [path for path in _ETC if os.path.exists(path)]
    interpreter = [sys.prefix, sys.base_prefix, sys.base_exec_prefix]
    paths += [*interpreter, *map(os.path.realpath, interpreter[1:]), *filter(os.path.isdir, library_paths())]
    top_paths: list[str] = []
    for path in sorted(set(paths)):
        if not any(path == other or path.startswith(other.rstrip("/") + "/") for other in top_paths):
            top_paths.append(path)
    return top_paths, links


def generated_files() -> list[tuple[str, str]]:
    """Returns the path and the text of some small files in /etc that libraries read.

    The generated files reveal nothing about the machine.
    """
    user = f"program:x:{PROGRAM_UID}:{PROGRAM_UID}::/box:/bin/sh\n"
    return [
        ("/etc/passwd", user),
        ("/etc/group", f"program:x:{PROGRAM_UID}:\n"),
        ("/etc/hosts", "127.0.0.1 localhost\n"),
        ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
    ]
