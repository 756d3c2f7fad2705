"""From the text of an answer to its tool calls, for each way that models write them.

A parser takes text in any pieces and gives `Part`s (`parts.py`): content, the beginning of a call,
pieces of its arguments. How a text is cut into pieces changes nothing but how the parts are cut, so
the joined parts of a stream are those of a whole answer. `select.py` says which parser a model
needs.

Special tokens that a format is written with are kept in the text (`ToolCallParser.marks`), so that
text is all that a parser needs. Everything here is pure: no I/O, no clock, no ids. Runs in the
frontend, one instance per choice.
"""
