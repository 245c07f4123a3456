"""From a script to its statements. What can't be understood is refused at its place, with what was expected there.

The grammar is in `docs/reference/sql.md`. Keywords are known by their place: a column or a model may be called `label` or `using`. Values
are literals, lists of them and bare names; nothing is ever evaluated.
"""

from __future__ import annotations

from collections.abc import Callable

from elasticdl.errors import BadStatement
from elasticdl.query import tokens
from elasticdl.query.script import Place, Script
from elasticdl.query.statements import (
    Attributes,
    DropModel,
    Evaluate,
    Explain,
    ModelReference,
    Named,
    Native,
    Predict,
    Query,
    ShowModels,
    ShowTrain,
    Statement,
    Train,
)
from elasticdl.query.tokens import Kind, Piece, Token
from elasticdl.spec.nearest import nearest
from elasticdl.tabular.columns import (
    SIGNATURES,
    SYNONYMS,
    Call,
    Column,
    ColumnList,
    Function,
    Name,
    Star,
    Value,
)

MODEL_NAME_LIMIT = 64
_MODEL_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
_REFUSED_VERBS = {
    "RUN": "TO RUN is not here: run the program with `elasticdl run`, or in a step of its own beside this one",
    "MAXIMIZE": "TO MAXIMIZE is not here: statements train and use models, and solve no optimisation problems",
    "MINIMIZE": "TO MINIMIZE is not here: statements train and use models, and solve no optimisation problems",
}
_WEIGHTED = (
    "is not here: a SELECT that splits the weights off gives EMBEDDING(SPARSE(x, n), width, sum) its ids"
)
_CLAUSES = ("WITH", "COLUMN", "LABEL", "INTO", "USING", "FOR")
_ORDER = "; WITH, COLUMN and LABEL come before INTO and USING"
_LITERALS: dict[str, Value] = {"TRUE": True, "FALSE": False, "NULL": None, "NONE": None}


def parse(text: str, dialect: str, filename: str = "sql") -> list[Statement]:
    """Read a script.

    Args:
        text: of it.
        dialect: sqlglot's name of the database's dialect: duckdb, sqlite, postgres, mysql, hive, ….
        filename: how messages call it.

    Raises BadStatement.
    """
    script = Script(text, filename)
    return [_statement(script, piece) for piece in tokens.pieces(script, dialect)]


def _statement(script: Script, piece: Piece) -> Statement:
    place = Place(script, piece.start, piece.end)
    words = [token.text.upper() if token.kind is Kind.NAME else "" for token in piece.words]
    if piece.tail is not None:
        text = script.text[piece.start : piece.tail]
        query = Query(text.rstrip(), Place(script, piece.start, piece.start + len(text.rstrip())))
        return _Reader(script, piece.tail, piece.end).after_select(query, place)
    match words:
        case ["SHOW", "TRAIN" | "MODELS", *_] | ["DROP", "MODEL", *_]:
            return _Reader(script, piece.start, piece.end).management(place)
        case (
            ["CREATE", "MODEL", *_]
            | ["CREATE", "OR", "REPLACE", "MODEL"]
            | ["CREATE", "OR REPLACE", "MODEL", *_]
        ):
            raise place.script.error(
                piece.start,
                "CREATE MODEL is BigQuery's; write SELECT … TO TRAIN dnn LABEL column INTO model, and SELECT … TO PREDICT table.column "
                "USING model in place of ML.PREDICT",
                len("CREATE MODEL"),
            )
        case ["DELIMITER", *_]:
            raise script.error(
                piece.start,
                "DELIMITER is a command of the program mysql and no SQL; leave it out: semicolons in the body of a trigger or a procedure "
                "end no statement here",
                len("DELIMITER"),
            )
        case ["TRAIN" | "PREDICT" as verb, _, *_]:
            raise script.error(
                piece.start,
                f"a statement begins with its SELECT: write SELECT … TO {verb} …",
                len(verb),
            )
    return Native(script.text[piece.start : piece.end], place)


class _Reader:
    """Reads our part of one statement from left to right."""

    def __init__(self, script: Script, start: int, end: int) -> None:
        self._script = script
        self._tokens = tokens.neutral(script, start, end)
        self._end = end
        self._at = 0

    def after_select(self, query: Query, place: Place) -> Statement:
        """Read what follows a SELECT."""
        if self._accept("LABEL"):
            label = self._name("a column")
            self._expect("INTO", "after the label")
            statement: Statement = Train(query, None, Attributes(), (), label, self._model_name(), place)
            self._finish()
            return statement
        self._expect("TO", "")
        verb = self._next()
        word = verb.text.upper()
        if word in _REFUSED_VERBS:
            raise self._error(verb, _REFUSED_VERBS[word])
        readers: dict[str, Callable[[Query, Place], Statement]] = {
            "TRAIN": self._train,
            "PREDICT": self._predict,
            "EVALUATE": self._evaluate,
            "EXPLAIN": self._explain,
        }
        statement = readers[word](query, place)
        self._finish()
        return statement

    def management(self, place: Place) -> Statement:
        """Read SHOW TRAIN, SHOW MODELS or DROP MODEL."""
        first, second = self._next().text.upper(), self._next().text.upper()
        statement: Statement
        if first == "DROP":
            if_exists = self._accept("IF")
            if if_exists:
                self._expect("EXISTS", "after IF")
            statement = DropModel(self._model(), if_exists, place)
        elif second == "TRAIN":
            statement = ShowTrain(self._model(), place)
        else:
            like = None
            if self._accept("LIKE"):
                token = self._peek()
                if token is None or token.kind is not Kind.STRING:
                    raise self._expected("a pattern in quotes, as in LIKE 'census%'")
                like = self._next().text
            statement = ShowModels(like, place)
        self._finish()
        return statement

    def _train(self, query: Query, place: Place) -> Train:
        target = self._target()
        attributes = self._attributes()
        columns: list[ColumnList] = []
        while self._accept("COLUMN"):
            columns.append(self._columns())
        label = self._name("a column") if self._accept("LABEL") else None
        using = self._peek()
        if using is not None and using.is_word("USING"):
            raise self._error(
                using,
                "TO TRAIN … USING is not here: to start from the weights of another model write WITH engine.checkpoint_dir_for_init='DIR'",
            )
        self._expect("INTO", "with the model's name")
        return Train(query, target, attributes, tuple(columns), label, self._model_name(), place)

    def _predict(self, query: Query, place: Place) -> Predict:
        *above, column = self._parts("where predictions go, as in table.column")
        table = _joined(above) if above else None
        attributes = self._attributes()
        self._no_columns()
        self._expect("USING", "with a model's name")
        return Predict(query, table, column, attributes, self._model(), place)

    def _evaluate(self, query: Query, place: Place) -> Evaluate:
        model = self._model()
        attributes = self._attributes()
        self._no_columns()
        label = self._name("a column") if self._accept("LABEL") else None
        table = self._dotted("a table") if self._accept("INTO") else None
        return Evaluate(query, model, attributes, label, table, place)

    def _explain(self, query: Query, place: Place) -> Explain:
        model = self._model()
        attributes = self._attributes()
        self._no_columns()
        method = self._name("a method") if self._accept("USING") else None
        table = self._dotted("a table") if self._accept("INTO") else None
        return Explain(query, model, attributes, method, table, place)

    def _no_columns(self) -> None:
        token = self._peek()
        if token is not None and token.is_word("COLUMN"):
            raise self._error(
                token, "COLUMN belongs to TO TRAIN: a model keeps what was made of its columns; leave it out"
            )

    # Names

    def _target(self) -> Named:
        token = self._peek()
        if token is not None and token.kind is Kind.STRING:
            token = self._next()
            return Named(token.text, self._place(token))
        return self._dotted("a kind of model, such as dnn")

    def _name(self, what: str) -> Named:
        token = self._peek()
        if token is None or token.kind not in (Kind.NAME, Kind.QUOTED):
            raise self._expected(what)
        if not token.text:
            raise self._error(token, f"expected {what}; the name between these quotes is empty")
        token = self._next()
        return Named(token.text, self._place(token))

    def _dotted(self, what: str) -> Named:
        """Read names with dots between; the text keeps the dots, and a dot inside quotes is one as well."""
        return _joined(self._parts(what))

    def _parts(self, what: str) -> list[Named]:
        """Read names with dots between; a dot inside quotes is a name's own."""
        found = [self._name(what)]
        while self._accept("."):
            found.append(self._name("a name after the dot"))
        return found

    def _model_name(self) -> Named:
        model = self._model()
        if model.version:
            raise model.place.error(
                "the version of a model is chosen when it is made; leave out what follows @"
            )
        return Named(model.name, model.place)

    def _model(self) -> ModelReference:
        """Read a model's name, which may have dots and hyphens, and `@` with how its version begins."""
        first = self._peek()
        if first is None or first.kind not in (Kind.NAME, Kind.QUOTED, Kind.NUMBER, Kind.STRING):
            raise self._expected("a model's name")
        run = [self._next()]
        while (token := self._peek()) is not None and token.start == run[-1].end and token.text != ",":
            run.append(self._next())
        start, end = run[0].start, run[-1].end
        place = Place(self._script, start, end)
        whole = run[0].text if len(run) == 1 else self._script.text[start:end]
        name, at, version = whole.partition("@")
        if bad := sorted({*name, *version} - _MODEL_CHARACTERS):
            raise place.error(
                f"a model's name has letters, digits, _, . and - only; {whole!r} has {', '.join(map(repr, bad))}"
            )
        if not name or name.startswith((".", "-")):
            raise place.error(f"a model's name begins with a letter or digit; {whole!r} does not")
        if len(name) > MODEL_NAME_LIMIT:
            raise place.error(
                f"a model's name has at most {MODEL_NAME_LIMIT} characters; this has {len(name)}"
            )
        if at and not version:
            raise place.error("after @ comes the version, or how it begins; `SHOW MODELS` lists them")
        return ModelReference(name, version, place)

    # WITH

    def _attributes(self) -> Attributes:
        values: dict[str, Value] = {}
        places: dict[str, Place] = {}
        if not self._accept("WITH"):
            return Attributes()
        while True:
            name = self._dotted("an attribute, as in WITH train.epoch=3")
            self._expect("=", f"after {name.name}")
            key = name.name.lower()
            if key in values:
                raise name.place.error(f"{name.name} is given twice")
            values[key], places[key] = self._value(), name.place
            if not self._accept(","):
                return Attributes(values, places)

    def _value(self) -> Value:
        token = self._peek()
        if token is None or token.is_word(",", ")", "]", "="):
            raise self._expected("a value: a number, text in quotes, a list or a name")
        token = self._next()
        match token.kind:
            case Kind.STRING | Kind.QUOTED:
                return token.text
            case Kind.NUMBER:
                return _number(token.text)
            case Kind.NAME:
                if token.text.upper() in _LITERALS:
                    return _LITERALS[token.text.upper()]
                text = token.text
                while self._accept("."):
                    text = f"{text}.{self._name('a name after the dot').name}"
                return text
        if token.text in "+-" and (number := self._peek()) is not None and number.kind is Kind.NUMBER:
            value = _number(self._next().text)
            return -value if token.text == "-" else value
        if token.text in "[(":
            return self._list("]" if token.text == "[" else ")")
        raise self._error(token, "expected a value: a number, text in quotes, a list or a name")

    def _list(self, closing: str) -> tuple[Value, ...]:
        values: list[Value] = []
        while not self._accept(closing):
            if values:
                self._expect(",", "between the values of a list")
            values.append(self._value())
        return tuple(values)

    # COLUMN

    def _columns(self) -> ColumnList:
        items = [self._column()]
        while self._accept(","):
            items.append(self._column())
        return ColumnList(
            tuple(items), self._name("an input of the model").name if self._accept("FOR") else None
        )

    def _column(self) -> Column:
        token = self._peek()
        if token is None or token.kind not in (Kind.NAME, Kind.QUOTED, Kind.SIGN):
            raise self._expected("a column, or a function of one")
        if self._accept("*"):
            return Star(token.start)
        name = self._name("a column, or a function of one")
        if token.kind is Kind.NAME and self._accept("("):
            return self._call(name)
        return Name(name.name, token.start)

    def _call(self, name: Named) -> Call:
        function = self._function(name)
        signature = SIGNATURES[function]
        columns: list[Column] = []
        values: list[Value] = []
        while not self._accept(")"):
            if columns or values:
                self._expect(",", f"or ) in {function}(…)")
            token = self._peek()
            if token is not None and token.is_word("[") and not columns:
                self._next()
                columns.append(self._column())
                while self._accept(","):
                    columns.append(self._column())
                self._expect("]", "after the columns")
            elif self._is_value(function, len(columns)):
                values.append(self._value())
            else:
                columns.append(self._column())
        least = 2 if function is Function.CROSS else 1
        if not least <= len(columns) <= signature.most or not (
            signature.required <= len(values) <= len(signature.values)
        ):
            raise name.place.error(f"this does not fit {function}; write {signature.usage}")
        return Call(function, tuple(columns), tuple(values), name.place.start)

    def _is_value(self, function: Function, columns: int) -> bool:
        """Tell whether a value follows and no column: a bare name is one after as many columns as the function takes."""
        token = self._peek()
        if token is None:
            return False
        if token.kind in (Kind.NUMBER, Kind.STRING) or token.is_word("[", "-", "+"):
            return True
        return token.kind is Kind.NAME and columns >= SIGNATURES[function].most

    def _function(self, name: Named) -> Function:
        word = name.name.upper()
        if word == "WEIGHTED_CATEGORY":
            raise name.place.error(f"WEIGHTED_CATEGORY {_WEIGHTED}")
        known = {function.value: function for function in Function} | SYNONYMS
        if word not in known:
            raise name.place.error(
                f"COLUMN has no function {name.name}{nearest(word, known) or '; known are ' + ', '.join(Function)}"
            )
        return known[word]

    # Tokens

    def _peek(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self) -> Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _accept(self, word: str) -> bool:
        token = self._peek()
        if token is None or not token.is_word(word):
            return False
        self._at += 1
        return True

    def _expect(self, word: str, context: str) -> None:
        if not self._accept(word):
            raise self._expected(f"{word} {context}".strip())

    def _finish(self) -> None:
        token = self._peek()
        if token is None:
            return
        if token.kind is Kind.NAME:
            word = token.text.upper()
            near = _ORDER if word in _CLAUSES else nearest(word, _CLAUSES)
            raise self._error(token, f"the statement should end before {token.text!r}{near}")
        raise self._error(token, f"the statement should end before {token.text!r}")

    def _expected(self, what: str) -> BadStatement:
        token = self._peek()
        if token is None:
            return self._script.error(self._end, f"expected {what}; the statement ends here")
        word = token.text.upper()
        if word in _CLAUSES:
            near = "; WITH and COLUMN come before LABEL" if word in ("WITH", "COLUMN") else ""
        else:
            near = nearest(word, _CLAUSES) if token.kind is Kind.NAME else ""
        return self._error(token, f"expected {what}, received {token.text!r}{near}")

    def _error(self, token: Token, message: str) -> BadStatement:
        return self._script.error(token.start, message, token.end - token.start)

    def _place(self, token: Token) -> Place:
        return Place(self._script, token.start, token.end)


def _joined(parts: list[Named]) -> Named:
    first, last = parts[0].place, parts[-1].place
    return Named(".".join(one.name for one in parts), Place(first.script, first.start, last.end))


def _number(text: str) -> int | float:
    return int(text) if text.isdigit() else float(text)
