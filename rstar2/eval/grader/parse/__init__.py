r"""Parses the text of an answer into nodes, which are plain data and cannot be executed.

`reader` prepares the text (`normalize`, `phrasing`, `conditions`, `tokens`) and parses it by the grammar below. The
parser uses recursive descent. The rules of the grammar are the methods of five classes, and each class has its own
file. In the grammar, quoted signs, commands and words are tokens. A text outside the grammar becomes a node of words.

    answer.py
      answer     = listing END
      listing    = relation { separator { separator } relation } [ separator ]
      separator  = "," | ";" | "&" | \\ | \land | \lor | and | or | where | with | such that | if | when ...
      relation   = [ label ":" ] side { operator side } | point            no label, or at least two in an answer
      point      = capital [ "'" | "_" number ] "(" sum { "," sum } ")"    not F(x, y)
      operator   = [ \not ] ( "=" | ":=" | "!=" | "<" | "<=" | ">" | ">=" | \in | \notin | \approx | \equiv ... )

    side.py
      side       = ( name before "=" | set ) [ residue | { ":" sum } | to sum ] [ scale ] [ unit ]
                 | [ currency code ] set [ currency ] [ unit ]
      name       = word | letter "(" letter ")"
      set        = sum [ ( \choose | \over ) sum ] { ( \cup | \cap | \setminus ) sum }
      residue    = ( \pmod | \bmod | \mod | mod ) ( "{" sum "}" | "(" sum ")" | sum ) | "(" mod sum ")"
      unit       = measure { measure | "/" | times } [ side ]              a second quantity: 1 hour 30 minutes
                 | ( "C" | "F" ) after a degree | \Omega after a number | ( am | pm ) after minutes
      measure    = ( word | ( "(" | "[" | "{" ) unit ( ")" | "]" | "}" ) | \frac "{" unit "}" "{" unit "}" )
                   [ "^" [ "-" ] digit ]

    collection.py
      collection = ( "(" | "[" | "]" ) relation { ( "," | ";" ) relation } ( ")" | "]" | "[" )
                 | \{ [ letter [ \in set ] ( "|" | ":" ) ] listing \} | \emptyset
                 | \langle sum { "," sum } \rangle | \mathbb{R} ... | currency factor
      currency   = \$ | \euro | \pounds | \yen | \textrupee

    arithmetic.py
      sum        = signed { ( "+" | "-" | \pm | \mp ) signed }
      signed     = [ "+" | "-" ] signed | ( \pm | \mp ) signed | term
      term       = factor { times { "+" | "-" } factor | over { "+" | "-" } factor | factor | fraction }
      fraction   = digits "/" digits                                       after a whole number: 1 1/2
      factor     = operand { ( "^" | "**" ) exponent | "_" index | "!" [ "!" ] | "'" | "%" | degree }
      exponent   = degree | \prime | T after a matrix or tuple | [ "-" ] argument [ "^" exponent ]
      argument   = "{" listing "}" | one letter | one digit | operand
      index      = argument | base of a numeral

    expression.py
      operand    = collection | number [ \overline digits ] | word | function | command
                 | "|" sum "|" | "{" listing "}"
      word       = constant | function | name of a letter | letters, each a factor | ( f | g ... ) "(" arguments ")"
      command    = \frac argument argument | \binom argument argument | \sqrt [ "[" sum "]" ] argument
                 | \lfloor sum \rfloor ... | series | integral | matrix | constant | letter | unknown name
      function   = name [ "_" argument ] [ "^" argument ] ( "(" arguments ")" | factors up to a function, "(" or dx )
      arguments  = sum { ( "," | ";" ) sum }
      series     = ( \sum | \prod | \lim ) [ "_" index ( "=" | \to ) sum ] [ "^" argument ] term
      integral   = ( \int | \iint | \oint ) [ "_" argument ] [ "^" argument ] sum
      matrix     = \begin{...} { sum | "&" | \\ } \end{...}
"""
