r"""Reading an answer: from text to plain nodes that cannot run.

`reader` prepares the text (`normalize`, `conditions`, `tokens`) and reads it by the one grammar below, which three
files share by recursive descent. Quoted signs, commands and words are tokens. What stands outside the grammar is kept
as words.

    answer.py
      answer     = listing END
      listing    = relation { separator { separator } relation } [ separator ]
      separator  = "," | ";" | "&" | \\ | \land | \lor | and | or | where | with | such that | if | when ...
      relation   = [ label ":" ] side { operator side } | point            at least two labels, or none
      point      = capital [ "'" ] "(" sum { "," sum } ")"                 not F(x, y)
      operator   = [ \not ] ( "=" | ":=" | "!=" | "<" | "<=" | ">" | ">=" | \in | \notin | \approx | \equiv ... )
      side       = ( name before "=" | set ) [ residue | { ":" sum } | to sum ] [ scale ] [ unit ]
                 | [ code of a currency ] set [ money ] [ unit ]
      name       = word | letter "(" letter ")"
      set        = sum [ ( \choose | \over ) sum ] { ( \cup | \cap | \setminus ) sum }
      residue    = ( \pmod | \bmod | \mod | mod ) ( "{" sum "}" | "(" sum ")" | sum ) | "(" mod sum ")"
      unit       = measure { measure | "/" | times } [ side ]              a second quantity: 1 hour 30 minutes
                 | ( "C" | "F" ) behind a degree | \Omega behind a number | ( am | pm ) behind minutes
      measure    = ( word | ( "(" | "[" | "{" ) unit ( ")" | "]" | "}" ) | \frac "{" unit "}" "{" unit "}" )
                   [ "^" [ "-" ] digit ]
      collection = ( "(" | "[" | "]" ) relation { ( "," | ";" ) relation } ( ")" | "]" | "[" )
                 | \{ [ letter [ \in set ] ( "|" | ":" ) ] listing \} | \emptyset
                 | \langle sum { "," sum } \rangle | \mathbb{R} ... | money factor
      money      = \$ | \euro | \pounds | \yen | \textrupee

    arithmetic.py
      sum        = signed { ( "+" | "-" | \pm | \mp ) signed }
      signed     = [ "+" | "-" ] signed | ( \pm | \mp ) signed | term
      term       = factor { times { "+" | "-" } factor | over { "+" | "-" } factor | factor | fraction }
      fraction   = digits "/" digits                                       behind a whole number: 1 1/2
      factor     = operand { ( "^" | "**" ) exponent | "_" index | "!" [ "!" ] | "'" | "%" | degree }
      exponent   = degree | \prime | T behind a matrix or tuple | [ "-" ] argument [ "^" exponent ]
      argument   = "{" listing "}" | one letter | one digit | operand
      index      = argument | the base of a numeral

    expression.py
      operand    = collection | number [ \overline digits ] | word | function | command
                 | "|" sum "|" | "{" listing "}"
      word       = constant | function | name of a letter | letters, each a factor | ( f | g ... ) "(" arguments ")"
      command    = \frac argument argument | \binom argument argument | \sqrt [ "[" sum "]" ] argument
                 | \lfloor sum \rfloor ... | series | integral | matrix | constant | letter | an unknown name
      function   = name [ "_" argument ] [ "^" argument ] ( "(" arguments ")" | factors up to a function, "(" or dx )
      arguments  = sum { ( "," | ";" ) sum }
      series     = ( \sum | \prod | \lim ) [ "_" index ( "=" | \to ) sum ] [ "^" argument ] term
      integral   = ( \int | \iint | \oint ) [ "_" argument ] [ "^" argument ] sum
      matrix     = \begin{...} { sum | "&" | \\ } \end{...}
"""
