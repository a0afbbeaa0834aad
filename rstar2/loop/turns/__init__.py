"""The turns of a conversation, as token ids and back: one object per format renders and parses them.

codec       what every format can do: `ChatCodec`
template    formats that have a chat template and tags of ours: `TemplateCodec`
tags        the tags of these formats: the only reader and writer of them
stream      shows a turn while it is generated
choose      which format a model has: `load_codec`
"""
