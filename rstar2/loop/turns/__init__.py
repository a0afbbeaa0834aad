"""The turns of a conversation, as token ids and back: one object per format renders and parses them.

codec       what every format can do: `ChatCodec`
template    formats that have a chat template and tags of ours: `TemplateCodec`
tags        the tags of these formats: the only reader and writer of them
families    families of models with a syntax of their own: `FamilyCodec`; the only user of the library `renderers`
turn        the parts of a turn that was read
stream      shows a turn while it is generated
breaker     keeps problems and tool output from holding tokens that control a conversation
choose      which format a model has: `load_codec`
check       tries a format before anything depends on it
"""
