"""Things of one's own by reference: ``package.module:Name``, or ``./file.py:Name`` for a file that is in no package."""

import hashlib
import importlib
import importlib.util
import re
import sys
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from fedgraft.base.errors import UserError

_REFERENCE = re.compile(r"(?P<place>.+?):(?P<name>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_reference(text: str) -> bool:
    """Whether a text has the form of a reference. Shipped names come first: ``mlp:wide`` has the form too."""
    return _REFERENCE.fullmatch(text) is not None


def split(text: str) -> tuple[str, str] | None:
    """Part a reference from what is behind a further colon: ``./my.py:Mine:beta=0.5``."""
    match = re.fullmatch(rf"(?P<reference>{_REFERENCE.pattern})(:(?P<rest>.*))?", text)
    return None if match is None else (match["reference"], match["rest"] or "")


def absolute(text: str) -> str:
    """Name a file by its whole path, so that a text that refers to it holds in any folder; leave others as they are."""
    match = re.fullmatch(r"(?P<place>[^:]*?\.py):(?P<rest>.*)", text)
    return text if match is None else f"{Path(match['place']).expanduser().resolve()}:{match['rest']}"


def resolve(text: str, kind: str) -> object:
    """Import what ``text`` refers to, which is to be a ``kind``; paths and modules are looked for from here."""
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise UserError(f"a {kind} of your own is named as package.module:Name or ./file.py:Name, not {text!r}")
    place, name = match["place"], match["name"]
    what = f"the {kind} {text!r}"
    if _is_path(place):
        module = _from_file(Path(place), what)
    elif _MODULE.fullmatch(place):
        module = _from_name(place, what)
    else:
        raise UserError(f"{what} cannot be found: {place!r} is neither a module nor a Python file")
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [each for each in vars(found) if not each.startswith("_")] if hasattr(found, "__dict__") else []
            near = get_close_matches(part, known, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UserError(f"{what} cannot be found: {place} has no {part!r}{hint}")
        found = getattr(found, part)
    return found


def reference(thing: object) -> str | None:
    """Return the text by which a class or a function can be found again, if there is one.

    There is none for what was made inside a function or in an interactive session.
    """
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    name = getattr(thing, "__qualname__", "")
    if module is None or not is_reference(f"m:{name}"):
        return None
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not thing:
        return None
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__" or module.__name__ in _FILES:
        return f"{Path(file).resolve()}:{name}" if file and file.endswith(".py") else None
    return f"{module.__name__}:{name}"


_FILES: set[str] = set()
"""Names of the modules that came from a file: they are found by it and not by their name."""


def _is_path(place: str) -> bool:
    return place.endswith(".py") or "/" in place or "\\" in place


def _from_file(path: Path, what: str) -> ModuleType:
    """Import a file by its path, once, under a name by which the worker processes find it too."""
    path = path.expanduser().resolve()
    try:
        there = path.is_file()
    except OSError:  # no file can have such a name
        there = False
    if not there:
        raise UserError(f"{what} cannot be found: there is no file {path}")
    if path.suffix != ".py":
        raise UserError(f"{what} cannot be imported: {path} is not a Python file")
    main = sys.modules.get("__main__")
    if main is not None and _is_file_of(main, path):  # a script that refers to itself is not run a second time
        return main
    _importable(path.parent)
    name = _module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _failed(what, error) from error
    _FILES.add(name)
    return module


def _module_name(path: Path) -> str:
    """The file's own name if an import gives this very file, else one that no other file has."""
    there = sys.modules.get(path.stem)
    if path.stem.isidentifier() and there is None:
        importlib.invalidate_caches()
        spec = importlib.util.find_spec(path.stem)
        if spec is not None and spec.origin is not None and Path(spec.origin).resolve() == path:
            return path.stem
    elif there is not None and _is_file_of(there, path):
        return path.stem
    return f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"


def _is_file_of(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == path


def _from_name(name: str, what: str) -> ModuleType:
    _importable(Path.cwd())
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _failed(what, error) from error
        raise UserError(f"{what} cannot be found: there is no module {error.name!r}, here or installed") from None
    except (Exception, SystemExit) as error:
        raise _failed(what, error) from error


def _importable(folder: Path) -> None:
    """Let modules of a folder be imported, after those that are installed: a file called random.py harms nobody."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _failed(what: str, error: BaseException) -> UserError:
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    return UserError(f"{what} cannot be imported: {text.removesuffix(': ')}")
