"""Finds what a busy machine could make red: waits with a bound of their own, and asserts on seconds or memory.

Run as `python tools/load_proof.py [FILE ...]`; without files it reads all below tests/. `make lint` does.

A test that is marked `clock` may measure: such tests run alone. Every other test must pass on a machine that is as slow
as can be. It reads the syntax only, so it knows what stands in a file, and which helper hands which parameter on to a
wait, but nothing of values that are computed. A line that it is wrong about says so: `# load: why load cannot make
this red`. Exits with 1 when it finds something.
"""

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

MARK = "# load: "
"""Begins the comment by which a line says why it is all right."""

MOST_TIMES = 3
"""`PATIENCE * n` with a greater n would not end before faulthandler ends the run (tests/patience.py)."""

ALLOWED_FILE = "tests/patience.py"

WAITS = {
    "acquire": 1, "eventually": 1, "fail_after": 0, "join": 0, "poll": 0, "result": 0, "settimeout": 0,
    "sigtimedwait": 1, "timeout": 0, "wait": 0, "wait_for": 1, "wait_until": 1,
}  # fmt: skip
"""Calls that wait at most as long as a number at this position."""

KEYWORDS: tuple[str, ...] = ("timeout", "patience", "wait")
"""Arguments, and parameters of helpers, that bound a wait, whoever is called."""

PARAMETERS = (*KEYWORDS, "deadline", "limit", "longest", "most", "seconds", "within")
"""Parameters of helpers that bound a wait where they are handed on to one."""

CLOCKS = ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "thread_time", "time_ns")
TOOK = ("duration", "elapsed", "slowest", "took")
"""What seconds are called that were measured elsewhere; so are keys that end in `seconds`."""

MEASURES = ("get_traced_memory", "getrusage", "memory_info", "num_fds", "rss", "fds")
PROC = ("/fd", "/fdinfo", "/smaps", "/statm", "/status")

ENDS = ("Timeout", "TimedOut", "Empty")
"""Parts of the names of errors by which a wait ends: where one is expected, the end of the wait is not a failure."""

Parameter = tuple[str, int]
"""Name and position of a parameter; without `self`."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, order=True, slots=True)
class Finding:
    """One expression that load could make fail. `node`: the expression itself."""

    path: str
    line: int
    problem: str
    node: ast.expr = field(compare=False)

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem}"


@dataclass(slots=True)
class Module:
    """What is known of one file before its waits are judged."""

    path: str
    tree: ast.Module
    lines: list[str]
    parents: dict[ast.AST, ast.AST]
    constants: dict[str, ast.expr]
    """Names that are bound to a number at the top."""
    imported: dict[str, str]
    """Name here -> file of the tests that it comes from."""
    functions: dict[Function, list[ast.AST]]
    """Each function and all that is in it."""

    @classmethod
    def read(cls, path: str, text: str) -> "Module":
        """Parse a file; raises SyntaxError."""
        tree = ast.parse(text, path)
        parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
        constants = {
            target.id: statement.value
            for statement in tree.body
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None
            for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
            if isinstance(target, ast.Name) and _number(statement.value) is not None
        }
        imported = {
            alias.asname or alias.name: statement.module.replace(".", "/") + ".py"
            for statement in ast.walk(tree)
            if isinstance(statement, ast.ImportFrom) and statement.module and statement.module.startswith("tests.")
            for alias in statement.names
        }
        functions = {node: list(ast.walk(node)) for node in ast.walk(tree) if isinstance(node, FUNCTIONS)}
        return cls(path, tree, text.splitlines(), parents, constants, imported, functions)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """What `node` is inside of, from the innermost."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def excused(self, node: ast.expr) -> bool:
        """Whether its line, or the first one of its statement, or the one above that, says why it is all right."""
        statement = next(parent for parent in [node, *self.above(node)] if isinstance(parent, ast.stmt | ast.arguments))
        first = statement.lineno if isinstance(statement, ast.stmt) else node.lineno
        above = self.lines[first - 2].strip() if first > 1 else ""
        if above.startswith(MARK):
            return True
        return any(MARK in self.lines[line - 1] for line in {first, node.lineno, node.end_lineno or node.lineno})


def _number(node: ast.expr | None) -> float | None:
    """The value of an expression of numbers only."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return float(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            negated = _number(operand)
            return None if negated is None else -negated
        case ast.BinOp(left=left, op=operator, right=right):
            a, b = _number(left), _number(right)
            if a is not None and b is not None:
                return {ast.Add: a + b, ast.Sub: a - b, ast.Mult: a * b}.get(type(operator), a)
    return None


def _called(node: ast.AST) -> str:
    """The last part of the name of what is called; empty for all that is no call."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
            return name
    return ""


def _is_clock(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="time" | "loop"), attr="time"), args=[]):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Call() as loop, attr="time"), args=[]):
            return _called(loop) in ("get_running_loop", "get_event_loop")
    return _called(node) in CLOCKS


def _is_pause(node: ast.AST) -> bool:
    """Whether it is `asyncio.wait` for less than a second: a pause between two looks, which ends nothing."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio"), attr="wait"), keywords=keywords):
            return any((_number(keyword.value) or 1) < 1 for keyword in keywords if keyword.arg == "timeout")
    return False


def _parameters(function: Function) -> list[ast.arg]:
    arguments = [*function.args.posonlyargs, *function.args.args]
    return arguments[1:] if arguments and arguments[0].arg in ("self", "cls") else arguments


def _defaults(function: Function) -> Iterator[tuple[str, ast.expr]]:
    positional = [*function.args.posonlyargs, *function.args.args]
    for argument, default in zip(reversed(positional), reversed(function.args.defaults), strict=False):
        yield argument.arg, default
    for argument, optional in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if optional is not None:
            yield argument.arg, optional


class Checker:
    """Judges the files that it is given together, because helpers of one are used in others."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._modules = {path: Module.read(path, text) for path, text in sources.items()}
        self._bounds: dict[tuple[str, str], set[Parameter]] = {}
        """(file, function) -> the parameters that it hands on to a wait. Methods are under `.name`, in any file."""
        self._measuring: set[tuple[str, str]] = set()
        """(file, function) of helpers that return memory or descriptors."""
        self.timing: set[tuple[str, str]] = set()
        """The same for seconds."""
        while self._learn_bounds():
            pass
        for module in self._modules.values():
            self._learn_measures(module)

    def findings(self) -> list[Finding]:
        """All that load could make red, in order."""
        found = {finding for module in self._modules.values() for finding in self._judge(module)}
        return sorted(found)

    # What helpers do with their parameters, and what they return.

    def _learn_bounds(self) -> bool:
        before = sum(map(len, self._bounds.values()))
        for module in self._modules.values():
            for function, nodes in module.functions.items():
                names = {argument.arg: place for place, argument in enumerate(_parameters(function))}
                names |= {argument.arg: -1 for argument in function.args.kwonlyargs}
                names = {name: place for name, place in names.items() if name in PARAMETERS}
                if not names:
                    continue
                waits = [bound for node in nodes for bound in self._waits(module, node)]
                used = {name.id for wait in waits for name in ast.walk(wait) if isinstance(name, ast.Name)}
                if used & set(names):
                    known = self._bounds.setdefault(self._key(module, function), set())
                    known.update((name, names[name]) for name in used & set(names))
        return before != sum(map(len, self._bounds.values()))

    def _learn_measures(self, module: Module) -> None:
        for function, nodes in module.functions.items():
            returned = [node.value for node in nodes if isinstance(node, ast.Return) and node.value is not None]
            if not returned or function.name.startswith("test_") or self._key(module, function)[0] == "":
                continue
            if any(self.measures(module, node) or _is_clock(node) for node in nodes):
                measured = Measured(self, module, function)
                if any(map(measured.reads, returned)):
                    self._measuring.add((module.path, function.name))
                if any(map(measured.elapsed, returned)):
                    self.timing.add((module.path, function.name))

    def _key(self, module: Module, function: Function) -> tuple[str, str]:
        if any(isinstance(parent, ast.ClassDef) for parent in list(module.above(function))[:1]):
            return "", f".{function.name}"
        return module.path, function.name

    def target(self, module: Module, node: ast.AST) -> tuple[str, str]:
        """File and name of the function that a call goes to; empty where it is no call, or not known."""
        match node:
            case ast.Call(func=ast.Name(id=name)):
                return module.imported.get(name, module.path), name
            case ast.Call(func=ast.Attribute(attr=name)):
                return "", f".{name}"
        return "", ""

    def measures(self, module: Module, node: ast.AST) -> bool:
        """Whether `node` itself reads memory, descriptors or threads."""
        match node:
            case ast.Call():
                return _called(node) in MEASURES or self.target(module, node) in self._measuring
            case ast.Constant(value=str(text)):
                return text.startswith("/proc/") and text.endswith((*PROC, "/self/task"))
            case ast.JoinedStr(values=[ast.Constant(value=str(start)), *_, ast.Constant(value=str(end))]):
                return start.startswith("/proc/") and end.endswith(PROC)
        return False

    def _waits(self, module: Module, node: ast.AST) -> Iterator[ast.expr]:
        """The arguments of a call, or the parts of a sum, that say how long something is waited for."""
        match node:
            case ast.Assign(value=ast.BinOp(op=ast.Add(), left=left, right=right)) if _is_clock(left):
                yield right
            case ast.Call():
                name = _called(node)
                places = {WAITS[name]} if name in WAITS else set()
                words: set[str] = {*KEYWORDS, "total"} if name == "ClientTimeout" else set(KEYWORDS)
                for word, place in self._bounds.get(self.target(module, node), ()):
                    words.add(word)
                    places.add(place)
                yield from (node.args[place] for place in places if 0 <= place < len(node.args))
                yield from (keyword.value for keyword in node.keywords if keyword.arg in words)

    # Judgement.

    def _judge(self, module: Module) -> Iterator[Finding]:
        if module.path == ALLOWED_FILE or _is_marked(module.tree.body):
            return
        clocked = {node for node in ast.walk(module.tree) if _has_mark(node) for node in ast.walk(node)}
        for node in ast.walk(module.tree):
            if node in clocked or _is_pause(node):
                continue
            for bound in self._waits(module, node):
                yield from self._judge_wait(module, bound)
            if isinstance(node, FUNCTIONS):
                yield from self._judge_defaults(module, node)
                yield from Measured(self, module, node).findings()
        for name, value in module.constants.items():
            if "PATIENCE" in name and not module.excused(value):
                yield self._wait_finding(module, value)

    def _judge_wait(self, module: Module, bound: ast.expr) -> Iterator[Finding]:
        if module.excused(bound) or self._expected_to_end(module, bound):
            return
        match bound:
            case ast.BinOp(op=ast.Mult(), left=ast.Name(id="PATIENCE"), right=times):
                if (_number(times) or 0) > MOST_TIMES and (_number(times) or 0) % 1000:  # some wait in milliseconds
                    problem = (
                        f"PATIENCE * {ast.unparse(times)}: faulthandler ends the run earlier; at most {MOST_TIMES}"
                    )
                    yield Finding(module.path, bound.lineno, problem, bound)
                return
            case ast.Name(id=name):
                home = self._modules.get(module.imported.get(name, module.path))
                value = home.constants.get(name) if home is not None else None
                if value is not None and _number(value) and home is not None and not home.excused(value):
                    yield self._wait_finding(home, value)
                return
        if _number(bound):
            yield self._wait_finding(module, bound)

    def _judge_defaults(self, module: Module, function: Function) -> Iterator[Finding]:
        bounds = {name for name, _ in self._bounds.get(self._key(module, function), ())}
        for name, default in _defaults(function):
            if (name in bounds or name in KEYWORDS) and _number(default) and not module.excused(default):
                yield self._wait_finding(module, default)

    def _wait_finding(self, module: Module, bound: ast.expr) -> Finding:
        shown = ast.unparse(bound)
        problem = (
            f"{shown} bounds a wait: use PATIENCE from tests/patience.py, or say `{MARK}why this cannot make it red`"
        )
        return Finding(module.path, bound.lineno, problem, bound)

    def _expected_to_end(self, module: Module, node: ast.AST) -> bool:
        """Whether the end of this wait is caught, or what comes of it is denied: then load makes nothing red."""
        for parent in module.above(node):
            match parent:
                case ast.With(items=items) | ast.AsyncWith(items=items):
                    calls = [
                        item.context_expr for item in items if _called(item.context_expr) in ("raises", "suppress")
                    ]
                    if any(end in ast.unparse(call) for call in calls for end in ENDS):
                        return True
                case ast.Try(handlers=handlers) if any(
                    handler.type is not None and end in ast.unparse(handler.type)
                    for handler in handlers
                    for end in ENDS
                ):
                    return True
                case ast.Assert(test=ast.UnaryOp(op=ast.Not())):
                    return True
                case ast.While(test=test) if any(inside is node for inside in ast.walk(test)):
                    return True  # it goes on, or ends with what has come
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    return False
        return False


class Measured:
    """The names of one function that hold something measured, and its asserts on them."""

    def __init__(self, checker: Checker, module: Module, function: Function) -> None:
        self._checker, self._module, self._function = checker, module, function
        self._instants: set[str] = set()
        self._seconds: set[str] = set()
        self._sizes: set[str] = set()
        self._relevant = any(
            _is_clock(node)
            or checker.measures(module, node)
            or checker.target(module, node) in checker.timing
            or _says_seconds(node)
            for node in module.functions[function]
        )
        before = -1 if self._relevant else 0
        while before != (before := len(self._instants) + len(self._seconds) + len(self._sizes)):
            for node in module.functions[function]:
                self._follow(node)

    def _follow(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                self._bind(targets, value)
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.AugAssign(target=target, value=value)
                | ast.NamedExpr(target=target, value=value)
            ):
                self._bind([target], value)
            case ast.Call(func=ast.Attribute(value=ast.Name() as target, attr="append"), args=[value]):
                self._bind([target], value)
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                self._bind([target], value)

    def _bind(self, targets: Sequence[ast.expr], value: ast.expr) -> None:
        if any(isinstance(target, ast.Tuple) for target in targets) and isinstance(value, ast.Tuple):
            for target in targets:
                if isinstance(target, ast.Tuple) and len(target.elts) == len(value.elts):
                    for one, other in zip(target.elts, value.elts, strict=True):
                        self._bind([one], other)
            return
        names = {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        if _is_clock(value):
            self._instants |= names
        if self.elapsed(value):
            self._seconds |= names
        if self.reads(value):
            self._sizes |= names

    def reads(self, value: ast.expr) -> bool:
        """Whether an expression comes from memory, descriptors or threads."""
        return any(
            self._checker.measures(self._module, node) or (isinstance(node, ast.Name) and node.id in self._sizes)
            for node in ast.walk(value)
        )

    def _instant(self, node: ast.AST) -> bool:
        return _is_clock(node) or (isinstance(node, ast.Name) and node.id in self._instants)

    def elapsed(self, value: ast.expr) -> bool:
        """Whether an expression comes from the difference of two moments."""
        return any(
            (isinstance(node, ast.Name) and node.id in self._seconds)
            or self._checker.target(self._module, node) in self._checker.timing
            or (
                isinstance(node, ast.BinOp)
                and isinstance(node.op, ast.Sub)
                and (self._instant(node.left) or self._instant(node.right))
            )
            for node in ast.walk(value)
        )

    def _rate(self, value: ast.expr) -> bool:
        return any(
            isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and self.elapsed(node.right)
            for node in ast.walk(value)
        )

    def findings(self) -> Iterator[Finding]:
        """The asserts of this function, and not those of functions inside of it, that load or other tests change."""
        for node in self._module.functions[self._function] if self._relevant else ():
            if not isinstance(node, ast.Compare) or self._module.excused(node):
                continue
            if not any(isinstance(parent, ast.Assert) for parent in self._module.above(node)):
                continue
            if any(isinstance(parent, ast.Lambda) for parent in self._module.above(node)):
                continue
            sides = [node.left, *node.comparators]
            if any(map(self.reads, sides)):
                yield self._finding(node, "memory, descriptors or threads")
            elif any(map(self._rate, sides)):
                yield self._finding(node, "a rate")
            elif any(
                self.elapsed(less) or (_number(more) is not None and _says_seconds(getattr(less, "slice", less)))
                for less, more in _upper_bounds(sides, node.ops)
            ):
                yield self._finding(node, "elapsed time")

    def _finding(self, node: ast.expr, what: str) -> Finding:
        problem = f"asserts on {what}: wait for the event that it means, or mark the test `clock`"
        return Finding(self._module.path, node.lineno, problem, node)


def _says_seconds(node: ast.AST) -> bool:
    """Whether a key or a name says that its value is measured seconds."""
    match node:
        case ast.Constant(value=str(key)):
            return key.endswith("seconds")
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in TOOK
    return False


def _upper_bounds(sides: Sequence[ast.expr], operators: Sequence[ast.cmpop]) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What must not be more, and than what: on a busy machine, what takes seconds takes more of them."""
    for left, operator, right in zip(sides, operators, sides[1:], strict=False):
        if isinstance(operator, ast.Lt | ast.LtE | ast.Eq):
            yield left, right
        if isinstance(operator, ast.Gt | ast.GtE | ast.Eq):
            yield right, left


def _has_mark(node: ast.AST) -> bool:
    return isinstance(node, (*FUNCTIONS, ast.ClassDef)) and any(
        ast.unparse(decorator).startswith("pytest.mark.clock") for decorator in node.decorator_list
    )


def _is_marked(body: Sequence[ast.stmt]) -> bool:
    """Whether a whole file is marked."""
    return any(
        isinstance(statement, ast.Assign)
        and ast.unparse(statement.targets[0]) == "pytestmark"
        and "pytest.mark.clock" in ast.unparse(statement.value)
        for statement in body
    )


def check(sources: Mapping[str, str]) -> list[Finding]:
    """What load could make red in these files (path -> text)."""
    return Checker(sources).findings()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is found; returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    paths = sorted((ROOT / "tests").rglob("*.py"))
    found = check({str(path.relative_to(ROOT)): path.read_text() for path in paths})
    wanted = {str(Path(path).resolve().relative_to(ROOT)) for path in given}
    shown = [finding for finding in found if not wanted or finding.path in wanted]
    print(*shown, sep="\n", end="\n" if shown else "")
    if shown:
        print(f"{len(shown)} found; docs/testing.md says what decides where a test runs", file=sys.stderr)
    return 1 if shown else 0


if __name__ == "__main__":
    sys.exit(main())
