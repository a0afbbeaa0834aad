"""Converts the turns of a conversation to token ids and back. One codec per format both renders and parses turns.

codec       the interface of all formats: `ChatCodec`
template    formats that use a chat template and rstar2's tags: `TemplateCodec`
tags        writes and parses these tags; no other module does
families    model families with their own syntax: `FamilyCodec`; the only module that uses the library `renderers`
turn        the parts of a parsed turn
stream      splits a turn into pieces to show while it is generated
breaker     removes control tokens from problems and tool output
choose      chooses the format of a model: `load_codec`
check       tests a format by a round trip before a run depends on it
demands     the thought, answer block or box that the texts of a prompt ask for
formulas    finds LaTeX formulas in a text
variables   finds the variables of a chat template
"""
